/* Figures as cards: heading, controls, plot, key, notes, and the numbers as a table. After figures.js.

   polyfedFigures.card(figure, options)   an <article>, drawn when it comes into sight; options are those of draw
     .change(options)                     other options
     .update(figure, options)             another figure
     .search(text)                        of many panels, those whose names have the text in them
     .show()                              draw it now; a promise
   polyfedFigures.drawAll()               all of a page, before printing */
"use strict";
(() => {
  const { draw, update, numbers } = polyfedFigures;
  const { DASHES, MARKERS, COLOURS, isShown, shown, valueAt, panelsOf, axisOf, columnOf } = polyfedFigures.parts;
  const ROWS = 400; // of a table
  const PANELS = 6; // of a figure at once, where it has many
  const TIMES = 5; // how far values reach before a logarithmic scale is of use

  function made(tag, properties = {}, ...inside) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) {
      if (name in element && !name.includes("-")) element[name] = value;
      else element.setAttribute(name, value);
    }
    element.append(...inside.filter((part) => part !== null && part !== undefined));
    return element;
  }

  const sight = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) if (entry.isIntersecting) inTurn(entry.target.closest(".card"));
    },
    { rootMargin: "300px" },
  );

  // One figure after another, each on the screen before the next is begun.
  let turn = Promise.resolve();
  function inTurn(card) {
    turn = turn
      .then(() => card.show())
      .catch(reportError) // and the next ones all the same
      .then(() => new Promise((done) => setTimeout(done)));
  }

  // What the key shows of a series: a bar, a line with its dash, or a mark.
  const SHAPES = {
    circle: "M12 1a4 4 0 1 0 .01 0z",
    square: "M8 1h8v8h-8z",
    diamond: "M12 0l5 5l-5 5l-5-5z",
    "triangle-up": "M12 0l5 9h-10z",
    "triangle-down": "M12 10l5-9h-10z",
    x: "M8 2l2-2l2 3l2-3l2 2l-3 3l3 3l-2 2l-2-3l-2 3l-2-2l3-3z",
    cross: "M10.5 0h3v3.5h3.5v3h-3.5v3.5h-3v-3.5h-3.5v-3h3.5z",
    star: "M12 0l1.4 3.6h3.6l-2.9 2.3l1.1 3.9l-3.2-2.3l-3.2 2.3l1.1-3.9l-2.9-2.3h3.6z",
  };

  function swatch(figure, one) {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const drawn = document.createElementNS("http://www.w3.org/2000/svg", "path");
    const dash = { solid: "", dash: "6 3", dot: "2 2.5", dashdot: "6 3 2 3", longdash: "9 3" }[
      DASHES[(one.dash || 0) % DASHES.length]
    ];
    const filled =
      figure.kind === "bars"
        ? "M5 0h14v10h-14z"
        : one.mode === "points" || figure.kind === "dots"
          ? SHAPES[MARKERS[(one.marker || 0) % MARKERS.length]]
          : "";
    for (const [name, value] of Object.entries({ width: 24, height: 10, "aria-hidden": "true" }))
      svg.setAttribute(name, value);
    drawn.setAttribute("d", filled || "M1 5h22");
    if (figure.kind === "lines" && !filled && !one.faint) {
      const mark = document.createElementNS("http://www.w3.org/2000/svg", "path");
      mark.setAttribute("d", SHAPES[MARKERS[(one.marker || 0) % MARKERS.length]]);
      mark.setAttribute("transform", "translate(3.6 1.5) scale(0.7)");
      mark.style.fill = `var(--c${one.colour % COLOURS})`;
      svg.append(mark);
    }
    if (!filled) drawn.setAttribute("stroke-dasharray", dash);
    Object.assign(drawn.style, {
      [filled ? "fill" : "stroke"]: `var(--c${one.colour % COLOURS})`,
      strokeWidth: filled ? 0 : 2.4,
    });
    svg.append(drawn);
    return svg;
  }

  // The key is made anew only for other series, so that whoever has the focus keeps it.
  function key(card) {
    const first = new Map();
    for (const one of card.figure.series)
      if (!first.has(one.name) || first.get(one.name).faint) first.set(one.name, one);
    const panels = new Set(card.figure.series.map((one) => one.panel || ""));
    const pairs = new Set(card.figure.series.map((one) => `${one.panel}/${one.name}`));
    const apart = panels.size > 1 && pairs.size === first.size; // each in one panel
    const list = card.legend;
    list.hidden = first.size < 2 || card.figure.kind === "heatmap";
    const now = JSON.stringify([...first.values()].map((one) => [one.name, one.colour, one.dash, one.marker]));
    if (list.made !== now) {
      list.made = now;
      list.replaceChildren(
        ...[...first.values()].map((one) =>
          made("li", {}, keyButton(card, one, apart && one.panel ? `${one.panel}: ${one.name}` : one.name)),
        ),
      );
    }
    [...first.values()].forEach((one, place) =>
      list.children[place].firstChild.setAttribute("aria-pressed", String(isShown(one, card.options))),
    );
  }

  function keyButton(card, one, text) {
    const button = made("button", { type: "button", title: "show or hide" }, swatch(card.figure, one), text);
    button.addEventListener("click", () => {
      const hidden = card.options.hidden || [];
      card.change({
        hidden: hidden.includes(one.name) ? hidden.filter((name) => name !== one.name) : [...hidden, one.name],
      });
    });
    return button;
  }

  function logButton(card) {
    const { figure } = card;
    if (figure.kind !== "lines" || figure.panel_axes) return null;
    const values = figure.series
      .slice(0, 400)
      .flatMap((one) => numbers(one.y))
      .filter(Number.isFinite);
    const [least, most] = values.reduce(
      ([a, b], value) => [Math.min(a, value), Math.max(b, value)],
      [Infinity, -Infinity],
    );
    if (!figure.y.log && (figure.y.better === "higher" || least <= 0 || most < TIMES * least)) return null;
    const button = made("button", { type: "button", "aria-pressed": String(Boolean(figure.y.log)) }, "log scale");
    button.addEventListener("click", () => {
      const pressed = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(pressed));
      card.change({ log: pressed });
    });
    return button;
  }

  function saveButton(card) {
    const button = made("button", { type: "button", "aria-label": `Save ${card.figure.title} as SVG` }, "SVG");
    button.addEventListener("click", () =>
      card.show().then(() => {
        const { clientWidth: width, clientHeight: height } = card.plot;
        return Plotly.downloadImage(card.plot, { format: "svg", filename: card.figure.key, width, height });
      }),
    );
    return button;
  }

  // The first page has the panels that the figure shows, a summary say; the others, and what is searched for, more.
  function pager(card) {
    const { figure } = card;
    if (!figure.panels || !figure.shown || figure.panels.length <= figure.shown) return null;
    const said = made("span", { className: "soft", role: "status" });
    const back = made("button", { type: "button", "aria-label": "earlier panels" }, "‹");
    const on = made("button", { type: "button", "aria-label": "further panels" }, "›");
    let page = 0;
    const say = () => {
      const all = card.chosen();
      const first = card.find ? PANELS : figure.shown;
      const start = page ? first + (page - 1) * PANELS : 0;
      const end = Math.min(all.length, page ? start + PANELS : first);
      said.textContent = all.length ? `${start + 1}–${end} of ${all.length}` : "none of that name";
      back.disabled = page === 0;
      on.disabled = end >= all.length;
      return { panels: all.slice(start, end) };
    };
    const move = (by) => {
      page += by;
      card.change(say());
    };
    back.addEventListener("click", () => move(-1));
    on.addEventListener("click", () => move(1));
    card.page = () => {
      page = 0;
      return say();
    };
    Object.assign(card.options, say());
    return made("span", { className: "controls pager" }, back, said, on);
  }

  // Tables are built when they are opened: rows are places along the axis, columns are series.
  function tableOf(figure, options) {
    if (figure.kind === "heatmap")
      return [
        ["", ...figure.categories],
        figure.rows.map((row, i) => [row, ...numbers(figure.matrix[i]).map((value) => shown(value))]),
      ];
    if (figure.categories && figure.categories.length) {
      const rows = figure.categories.map((name, i) => [
        name,
        ...figure.series.map((one) => shown(valueAt((figure.axes || [])[i], numbers(one.y)[i]))),
      ]);
      return [["", ...figure.series.map((one) => (one.panel ? `${one.panel}: ${one.name}` : one.name))], rows];
    }
    return along(figure, options);
  }

  function along(figure, options) {
    const panels = panelsOf(figure, options);
    const series = figure.series.filter((one) => panels.includes(one.panel || ""));
    const axis = axisOf(figure, options);
    const rows = new Map();
    series.forEach((one, place) => {
      const y = numbers(one.y);
      columnOf(figure, one, axis.key).forEach((x, i) => {
        if (!Number.isFinite(y[i])) return;
        if (!rows.has(x)) rows.set(x, new Array(series.length).fill(""));
        rows.get(x)[place] = shown(y[i], figure.y.unit);
      });
    });
    const head = [axis.label, ...series.map((one) => (one.panel ? `${one.panel}: ${one.name}` : one.name))];
    return [head, [...rows.keys()].sort((a, b) => a - b).map((x) => [shown(x, axis.unit), ...rows.get(x)])];
  }

  function table(card) {
    const box = made("div", {
      className: "scroll",
      tabIndex: 0,
      role: "region",
      "aria-label": `${card.figure.title}, as a table`,
    });
    const details = made("details", {}, made("summary", {}, "Data as a table"), box);
    card.fill = () => {
      if (!details.open) return;
      const [head, rows] = tableOf(card.figure, card.options);
      const cells = (row) =>
        made("tr", {}, made("th", { scope: "row" }, row[0]), ...row.slice(1).map((cell) => made("td", {}, cell)));
      const caption = rows.length > ROWS ? `The first ${ROWS} of ${rows.length} rows.` : card.figure.about;
      box.replaceChildren(
        made(
          "table",
          {},
          made("caption", {}, caption),
          made("thead", {}, made("tr", {}, ...head.map((name) => made("th", { scope: "col" }, name)))),
          made("tbody", {}, ...rows.slice(0, ROWS).map(cells)),
        ),
      );
    };
    details.addEventListener("toggle", card.fill);
    return details;
  }

  function card(figure, options = {}) {
    const plot = made("div", { className: "plot" });
    const found = made("article", {
      className: figure.wide || (figure.panels || []).length > 1 ? "card wide" : "card",
      id: `figure-${figure.key}`,
    });
    Object.assign(found, { figure, options: { ...options }, plot, find: "", legend: made("ul", { className: "key" }) });
    plot.setAttribute("role", "img");
    plot.setAttribute("aria-label", `${figure.title}. ${figure.about}`);
    found.chosen = () => figure.panels.filter((name) => name.toLowerCase().includes(found.find.toLowerCase()));
    plot.style.minHeight = `${(figure.panels || []).length > 3 ? 530 : 360}px`; // until it is drawn
    found.show = () => {
      if (found.drawn) return found.drawn;
      sight.unobserve(plot);
      found.drawn = draw(plot, found.figure, found.options).then(() => {
        found.dataset.drawn = "yes";
        plot.style.minHeight = "";
      });
      return found.drawn;
    };
    found.change = (more) => {
      Object.assign(found.options, more);
      found.fill();
      key(found);
      return found.drawn ? found.drawn.then(() => update(plot, found.figure, found.options)) : undefined;
    };
    found.search = (text) => {
      if (found.page) {
        found.find = text;
        found.change(found.page());
      }
    };
    found.update = (other, more = {}) => {
      found.figure = other || found.figure;
      return found.change(more);
    };
    const controls = [pager(found), logButton(found), saveButton(found)].filter(Boolean);
    const notes = (figure.notes || []).map((note) => made("p", { className: "about" }, note));
    const title = made("h3", {}, figure.title);
    found.setAttribute("aria-labelledby", (title.id = `title-${figure.key}`));
    found.append(
      made("div", { className: "controls top" }, title, ...controls),
      made("p", { className: "about" }, figure.about),
    );
    found.append(plot, found.legend, ...notes, table(found));
    key(found);
    sight.observe(plot);
    return found;
  }

  const drawAll = () =>
    Promise.all([...document.querySelectorAll(".card")].filter((one) => one.show).map((one) => one.show()));

  Object.assign(polyfedFigures, { card, drawAll });
})();
