// The page: listens to the server, and shows what the address names: #run=a&run=b, or #front=c.
import { Chosen } from "./chosen.js";
import { Front } from "./front.js";
import { List } from "./list.js";
import { made } from "./parts.js";

const detail = document.getElementById("detail");
const live = document.getElementById("live");
let open = null;

const list = new List((ids) => {
  location.hash = new URLSearchParams(ids.map((id) => ["run", id])).toString();
});

function follow() {
  const asked = new URLSearchParams(location.hash.slice(1));
  const ids = asked.getAll("run");
  const front = asked.get("front");
  open?.end();
  open = null;
  list.select(front === null ? ids : []);
  const close = made("button", { type: "button", className: "close", "aria-label": "Close" }, "Close");
  close.addEventListener("click", () => {
    location.hash = "";
    document.getElementById("runs").focus();
  });
  const place = made("div");
  detail.replaceChildren(close, place);
  detail.hidden = front === null && !ids.length;
  document.body.classList.toggle("split", !detail.hidden);
  if (!detail.hidden && document.activeElement?.matches("#list a, #detail a")) detail.focus(); // a link leads there
  if (front !== null) open = new Front(place, list, front);
  else if (ids.length) open = new Chosen(place, list, ids);
}

// A page that nobody sees does not listen: browsers allow six connections to a server, in all tabs together.
let source = null;
let begun = false;
function listen() {
  source?.close();
  source = null;
  if (document.hidden) return say("paused", "paused");
  source = new EventSource("api/events");
  source.onopen = () => say("live", "live");
  source.onerror = () => say("lost", "not connected; trying again");
  source.onmessage = ({ data }) => told(JSON.parse(data));
  return undefined;
}

function say(state, text) {
  live.dataset.state = state;
  if (live.textContent !== text) live.textContent = text;
}

function told(change) {
  if (change.whole) {
    document.getElementById("folder").textContent = change.folder;
    document.title = `${change.folder} · polyfed view`;
  }
  list.told(change);
  empty(change);
  if (!begun) {
    begun = true;
    follow();
  } else
    open?.told(
      change.rows.map((row) => row.id),
      change.groups.map((group) => group.id),
    );
}

function empty(change) {
  const note = document.getElementById("note");
  const none = !list.rows.size && !list.groups.size;
  if (change.whole)
    note.dataset.cut = change.cut
      ? "There are more folders than are looked into: give a smaller one to polyfed view."
      : "";
  note.textContent = none
    ? "No run is here yet. This starts one, and it will appear: polyfed run two-digits"
    : note.dataset.cut || "";
  note.hidden = !note.textContent;
}

polyfedTheme.changed = () => {
  if (typeof polyfedFigures !== "undefined") polyfedFigures.redraw();
};
polyfedTheme.begin();

// The address says what is shown, so these links move the focus alone.
for (const link of document.querySelectorAll(".skip"))
  link.addEventListener("click", (event) => {
    event.preventDefault();
    const place = document.querySelector(link.getAttribute("href"));
    (place.hidden ? document.getElementById("runs") : place).focus();
  });
window.addEventListener("hashchange", follow);
document.addEventListener("visibilitychange", listen);
listen();
