// Small parts of the page. Texts of runs become text nodes, never markup.

export function made(tag, properties = {}, ...inside) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (name in element && !name.includes("-")) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...inside.filter((part) => part !== null && part !== undefined));
  return element;
}

export function shown(value) {
  if (typeof value !== "number" || !Number.isFinite(value)) return "–";
  if (Number.isInteger(value)) return String(value);
  const small = Math.abs(value) < 1e-3 || Math.abs(value) >= 1e5;
  return small ? value.toExponential(2) : String(Number(value.toPrecision(4)));
}

// A metric as the terminal says it: an accuracy in percent.
export const measured = (metric, value) =>
  metric === "accuracy" && Number.isFinite(value) ? `${(100 * value).toFixed(1)} %` : shown(value);

// Other children, but only where they differ; whoever has the focus keeps it.
export function swap(place, ...children) {
  const fresh = made("div", {}, ...children);
  if (place.made === fresh.innerHTML) return;
  place.made = fresh.innerHTML;
  const stops = () => [...place.querySelectorAll("a, button, input, select, summary, [tabindex]")];
  const at = stops().indexOf(document.activeElement);
  place.replaceChildren(...fresh.childNodes);
  if (at >= 0) stops()[at]?.focus({ preventScroll: true });
}

export function lasted(seconds) {
  if (typeof seconds !== "number") return "–";
  if (seconds < 90) return `${Number(seconds.toPrecision(2))} s`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${Number((seconds / 3600).toPrecision(2))} h`;
}

export function ago(seconds) {
  const past = Date.now() / 1000 - seconds;
  if (past < 45) return "now";
  for (const [length, name] of [
    [60, "min"],
    [3600, "h"],
    [86400, "d"],
  ]) {
    const next = { min: 3600, h: 86400, d: 86400 * 60 }[name];
    if (past < next) return `${Math.round(past / length)} ${name} ago`;
  }
  return new Date(seconds * 1000).toISOString().slice(0, 10);
}

const SIGNS = { running: "●", done: "✓", stopped: "■", broken: "!" };
export const state = (name) =>
  made("span", { className: `state ${name}` }, made("span", { "aria-hidden": "true" }, SIGNS[name] || ""), ` ${name}`);

export function toCopy(what, text) {
  const button = made("button", { type: "button", "aria-label": `Copy: ${what}` }, "Copy");
  button.addEventListener("click", async () => {
    const done = await copied(text);
    button.textContent = done ? "Copied" : "Select and copy";
    setTimeout(() => {
      button.textContent = "Copy";
    }, 1500);
  });
  return made(
    "div",
    { className: "command" },
    made("span", { className: "soft" }, what),
    made("code", {}, text),
    button,
  );
}

// Browsers have a clipboard for pages of this machine and for https alone; elsewhere an older way does.
async function copied(text) {
  if (navigator.clipboard && window.isSecureContext) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      return false;
    }
  }
  const field = made("textarea", { value: text, className: "unseen" });
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  return done;
}

export async function ask(path, pairs) {
  const answer = await fetch(`${path}?${new URLSearchParams(pairs)}`, { cache: "no-store" });
  const told = await answer.json().catch(() => ({ error: `The server answered ${answer.status}.` }));
  if (!answer.ok) throw new Error(told.error || `The server answered ${answer.status}.`);
  return told;
}

// plotly is large: the list is there before it.
let figures = null;
export function drawing() {
  figures =
    figures ||
    ["web/plotly.js", "web/figures.js", "web/cards.js"]
      .reduce(
        (before, source) =>
          before.then(
            () =>
              new Promise((done, failed) => {
                document.head.append(
                  made("script", {
                    src: source,
                    onload: done,
                    onerror: () => failed(new Error(`${source} cannot be loaded.`)),
                  }),
                );
              }),
          ),
        Promise.resolve(),
      )
      .then(() => polyfedFigures);
  return figures;
}

export const facts = (pairs) =>
  made(
    "dl",
    { className: "facts" },
    ...pairs.map(([name, value]) => made("div", {}, made("dt", {}, name), made("dd", {}, value))),
  );

export function table(caption, head, rows) {
  return made(
    "div",
    { className: "scroll", tabIndex: 0, role: "region", "aria-label": caption },
    made(
      "table",
      {},
      made("caption", {}, caption),
      made("thead", {}, made("tr", {}, ...head.map((name) => made("th", { scope: "col" }, name)))),
      made(
        "tbody",
        {},
        ...rows.map(([first, ...cells]) =>
          made("tr", {}, made("th", { scope: "row" }, first), ...cells.map((cell) => made("td", {}, cell))),
        ),
      ),
    ),
  );
}
