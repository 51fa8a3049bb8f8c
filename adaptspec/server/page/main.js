// Puts the page together: what is heard goes to what is drawn, at most once a frame.

import { setKey } from "./api.js";
import { Decisions } from "./decisions.js";
import { $, say } from "./dom.js";
import { Feed } from "./feed.js";
import { count } from "./format.js";
import { Playground } from "./playground.js";
import { Policy } from "./policy.js";
import { Speed } from "./speed.js";
import { Strips } from "./strips.js";
import { Waterfall } from "./waterfall.js";

const ICONS = {
  light: "M12 3v2M12 19v2M3 12h2M19 12h2M5.6 5.6l1.5 1.5M16.9 16.9l1.5 1.5M5.6 18.4l1.5-1.5M16.9 7.1l1.5-1.5M16 12a4 4 0 1 1-8 0 4 4 0 0 1 8 0Z",
  dark: "M20 14.5A8.5 8.5 0 0 1 9.5 4 8.5 8.5 0 1 0 20 14.5Z",
};

const feed = new Feed();
const playground = new Playground(feed);
const policy = new Policy(feed);
const parts = [new Speed(feed), new Strips(feed), new Decisions(feed), new Waterfall(feed)];

const calm = matchMedia("(prefers-reduced-motion: reduce)");
let asked = false;
let drawn = 0;
function draw() {
  // Figures that change four times a second are motion, too.
  if (asked || (calm.matches && performance.now() - drawn < 900)) return;
  asked = true;
  requestAnimationFrame((now) => {
    asked = false;
    drawn = now;
    if (!feed.ready) return;
    for (const part of parts) part.draw();
    const { running, waiting } = feed.load;
    say($("load"), `${count(running)} running${waiting ? `, ${count(waiting)} waiting` : ""}`);
    $("load").hidden = false;
  });
}

function connection() {
  const { state, text, detail } = feed.connection;
  $("connection").dataset.state = state;
  say($("connection-text"), text);
  $("retry").hidden = state !== "lost";
  $("banner").hidden = !detail;
  say($("banner"), detail);
  const locked = state === "locked";
  const asks = locked && $("key-form").hidden;
  $("key-form").hidden = !locked;
  $("content").hidden = locked;
  if (locked) $("notice").hidden = true;
  $("content").classList.toggle("stale", state === "lost" || (state === "connecting" && !feed.ready));
  if (asks) $("key-input").focus();
}

function theme() {
  const shown = document.documentElement.dataset.theme;
  const button = $("theme");
  button.setAttribute("aria-label", shown === "dark" ? "Switch to light colours" : "Switch to dark colours");
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", ICONS[shown]);
  svg.append(path);
  button.replaceChildren(svg);
  draw();
}

feed.addEventListener("open", () => {
  const { model, parameters, adaptspec } = feed.server;
  say($("model"), `${model}, ${(parameters / 1e6).toLocaleString("en", { maximumFractionDigits: 1 })} M parameters`);
  say($("version"), `AdaptSpec ${adaptspec}`);
  $("content").setAttribute("aria-busy", "false");
  playground.open();
  policy.open();
});
feed.addEventListener("policies", () => playground.open());
for (const event of ["change", "beat", "open"]) feed.addEventListener(event, draw);
feed.addEventListener("connection", connection);

let tried = false;
$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  setKey("api", $("key-input").value.trim());
  tried = true;
  say($("key-error"), "");
  feed.connect();
});
feed.addEventListener("connection", () => {
  const { state } = feed.connection;
  if (state === "locked" && tried) say($("key-error"), "The server does not know this key.");
  if (state !== "connecting" && state !== "waiting") tried = false;
});
$("retry").addEventListener("click", () => feed.connect());
$("theme").addEventListener("click", () => window.nextTheme());
$("try").addEventListener("click", () => {
  $("playground").scrollIntoView({ block: "start" });
  $("prompt").focus();
  playground.run();
});
document.addEventListener("theme", theme);
new ResizeObserver(draw).observe($("content"));
setInterval(draw, 1000); // time goes on while nothing happens

theme();
feed.start();
