// Puts the page together: what the feed reports is drawn at most once a frame.

import { Decisions } from "./decisions.js";
import { $, count, el, say, swatch } from "./dom.js";
import { Feed, setKey } from "./feed.js";
import { Playground } from "./playground.js";
import { Policy } from "./policy.js";
import { Requests } from "./requests.js";
import { Speed } from "./speed.js";

const CALM_MS = 900; // between two drawings for readers who want little motion

const feed = new Feed();
const speed = new Speed(feed);
const playground = new Playground(feed);
const policy = new Policy(feed);
const parts = [speed, new Requests(feed), new Decisions(feed)];

const calm = matchMedia("(prefers-reduced-motion: reduce)");
let requested = false;
let drawn = 0;
function draw() {
  if (requested || !feed.server || (calm.matches && performance.now() - drawn < CALM_MS)) return;
  requested = true;
  requestAnimationFrame((now) => {
    requested = false;
    drawn = now;
    for (const part of parts) part.draw();
    const { running, waiting } = feed.load;
    $("load").hidden = false;
    say($("load"), `${count(running)} running${waiting ? `, ${count(waiting)} waiting` : ""}`);
    const missed = feed.missedRounds ? `; ${count(feed.missedRounds)} rounds came too fast to be counted here` : "";
    say($("version"), `AdaptSpec ${feed.server.adaptspec}${missed}`);
  });
}

feed.addEventListener("open", () => {
  const { model, parameters, drafters } = feed.server;
  const size = parameters >= 1e9 ? `${(parameters / 1e9).toFixed(1)} B` : `${(parameters / 1e6).toFixed(0)} M`;
  say($("model"), `${model}, ${size} parameters`);
  $("drafter-legend").replaceChildren(...drafters.map((name, i) => el("li", {}, swatch(i), name)));
  $("content").setAttribute("aria-busy", "false");
  speed.open();
  playground.open();
  policy.open();
  draw();
});
feed.addEventListener("change", draw);
feed.addEventListener("policies", () => playground.open());

let keyGiven = false;
feed.addEventListener("connection", () => {
  const { state, text, detail } = feed.connection;
  const locked = state === "locked";
  $("connection").dataset.state = state;
  say($("connection-text"), text);
  $("retry").hidden = state !== "lost";
  $("banner").hidden = !detail;
  say($("banner"), detail);
  if (locked && $("key-form").hidden) {
    $("key-form").hidden = false;
    $("key-input").focus();
  }
  $("key-form").hidden = !locked;
  $("content").hidden = locked;
  $("content").classList.toggle("stale", state === "lost");
  if (locked && keyGiven) say($("key-error"), "The server does not know this key.");
});
$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  setKey("api", $("key-input").value.trim());
  keyGiven = true;
  say($("key-error"), "");
  feed.connect();
});
$("retry").addEventListener("click", () => feed.connect());
new ResizeObserver(draw).observe($("content"));
setInterval(draw, 1000); // time goes on while nothing happens

feed.start();
