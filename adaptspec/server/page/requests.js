// The requests that run and those that ended lately; a click opens one with its phases, events and rounds.

import { $, count, duration, el, keyed, plural, say, showSpeedup } from "./dom.js";
import { call, named } from "./feed.js";
import { deepest, drawStrip, makeStrip, roundSentence } from "./rounds.js";

const SHOWN = 16;
const REFRESH_MS = 1500;
const EVENTS = { switch: "drafting switched ", off: "drafting stopped: ", preempt: "paused: it ", resume: "resumed: it " }; // before their detail

const shortId = (id) => id.replace(/^(chatcmpl|cmpl)-/, "").slice(0, 8) + (/-\d+$/.exec(id.slice(9))?.[0] ?? "");

export class Requests {
  #feed;
  #all = false;
  #opened = null; // the id of the request in the dialog
  #timer = 0;

  constructor(feed) {
    this.#feed = feed;
    $("requests-more").addEventListener("click", () => {
      this.#all = !this.#all;
      this.draw();
    });
    $("detail-close").addEventListener("click", () => $("detail").close());
    $("detail").addEventListener("click", (event) => event.target === $("detail") && $("detail").close());
    $("detail").addEventListener("close", () => {
      clearTimeout(this.#timer);
      this.#opened = null;
    });
  }

  draw() {
    const all = [...this.#feed.requests.values()].sort((a, b) => (b.admitted ?? Infinity) - (a.admitted ?? Infinity));
    const shown = all.filter((request, i) => this.#all || i < SHOWN || request.state === "running");
    const more = $("requests-more");
    more.hidden = all.length <= SHOWN;
    say(more, this.#all ? "Show fewer" : `Show all ${all.length}`);
    $("requests-empty").hidden = all.length > 0;
    const depth = deepest(shown);
    keyed(
      $("request-list"),
      shown.map((request) => ({ key: request.id, request })),
      ({ key }) => this.#row(key),
      (row, { request }) => this.#fill(row, request, depth),
    );
  }

  #row(id) {
    const who = el("span", { class: "who" }, el("b"), el("span"));
    const time = el("span", { class: "time" }, el("span", { class: "phases" }), el("span"));
    return el("li", {}, el("button", { type: "button", class: "request", onclick: () => this.#open(id) }, who, makeStrip(), el("span"), el("span"), time));
  }

  #fill(row, request, depth) {
    const state = `${request.state} ${depth} ${request.tokens}`;
    if (request.state === "ended" && row.dataset.drawn === state) return; // nothing can have changed
    row.dataset.drawn = state;
    const [who, strip, tokens, gain, time] = row.firstChild.children;
    say(who.firstChild, request.task ?? "no task");
    say(who.lastChild, `${shortId(request.id)} · ${request.policy}`);
    drawStrip(strip, request.rounds, depth);
    say(tokens, plural(request.tokens, "token"));
    showSpeedup(gain, request.speedup, request.drafted);
    if (request.speedup && !request.drafted) say(gain, "nothing drafted");
    say(time.lastChild, this.#status(request));
    time.lastChild.classList.toggle("error", request.finish === "error");
    time.firstChild.hidden = request.state === "running";
    time.firstChild.replaceChildren(...phaseBars(phasesOf(request)));
  }

  #status({ state, finish, admitted, arrived, finished, tokens }) {
    if (state === "running") return `${tokens ? "running" : "reading"}, ${duration(this.#feed.now() - admitted)}`;
    const total = duration(finished - (arrived ?? admitted));
    return finish === "error" || finish === "abort" ? `${finish} after ${total}` : total;
  }

  #open(id) {
    this.#opened = id;
    say($("detail-title"), id);
    $("detail-body").replaceChildren(el("p", { class: "muted" }, "Loading ..."));
    $("detail").showModal();
    this.#refresh(id);
  }

  async #refresh(id) {
    try {
      const answer = await (await call(`live/requests/${encodeURIComponent(id)}`)).json();
      if (id !== this.#opened) return;
      const scrolled = $("detail-body").scrollTop;
      $("detail-body").replaceChildren(...this.#detail(answer));
      $("detail-body").scrollTop = scrolled;
      if (answer.request.state === "running") this.#timer = setTimeout(() => this.#refresh(id), REFRESH_MS);
    } catch (error) {
      if (id !== this.#opened) return;
      const words = error.status === 404 ? "The server no longer keeps this request: it keeps the last 100 that ended." : error.message;
      $("detail-body").replaceChildren(el("p", { class: "error" }, words));
    }
  }

  #detail({ request, sentence, phases, events, columns, rounds, omitted_rounds: omitted }) {
    const named_rounds = named(columns, rounds);
    const gain = el("p", { class: "gain" });
    showSpeedup(gain, request.speedup, request.drafted);
    if (!request.drafted) say(gain, "Nothing was drafted.");
    else if (!request.speedup) say(gain, "Its speed-up is not known yet.");
    const task = request.task === null ? "no task" : `task ${request.task}${request.task_detected ? " (detected from the prompt)" : ""}`;
    const cached = request.cached_tokens ? `, ${count(request.cached_tokens)} of them cached` : "";
    const facts = [task, `policy ${request.policy}`, `${plural(request.prompt_tokens, "prompt token")}${cached}`, request.finish ? `ended by ${request.finish}` : "running"];
    const strip = makeStrip();
    drawStrip(strip, named_rounds, deepest([{ rounds: named_rounds }]));
    const start = phases[0]?.start ?? 0;
    return [
      gain,
      el("p", { class: "sentence" }, sentence),
      el("p", { class: "muted" }, `${facts.join(", ")}.`),
      el("h3", {}, "Where the time went"),
      el("div", { class: "phases" }, ...phaseBars(phases)),
      el("p", { class: "small muted" }, phases.map(({ name, seconds }) => `${name} ${duration(seconds)}`).join(" · ")),
      ...(events.length ? [el("h3", {}, "Events"), el("ul", {}, ...events.map(({ at, name, detail }) => el("li", {}, `after ${duration(at - start)}: ${EVENTS[name] ?? ""}${detail}`)))] : []),
      el("h3", {}, omitted ? `The last ${count(rounds.length)} rounds` : "Rounds"),
      strip,
      this.#roundTable(named_rounds),
    ];
  }

  #roundTable(rounds) {
    const { reasons, server } = this.#feed;
    const numbers = [["tokens", (round) => count(round.emitted)], ["time", (round) => duration(round.seconds)], ["batch", (round) => count(round.rows)]];
    const head = (name, cls) => el("th", { scope: "col", class: cls }, name);
    const rows = rounds.map((round) =>
      el(
        "tr",
        {},
        el("td", { class: "number muted" }, count(round.number)),
        el("td", {}, roundSentence(round, server.drafters), el("p", { class: "muted small" }, reasons.get(round.reason)?.words ?? "")),
        ...numbers.map(([, value]) => el("td", { class: "number" }, value(round))),
      ),
    );
    const header = el("tr", {}, head("round", "number"), head("decision, outcome, reason"), ...numbers.map(([name]) => head(name, "number")));
    return el("div", { class: "scroll" }, el("table", { class: "rounds" }, el("thead", {}, header), el("tbody", {}, ...rows)));
  }
}

// Phases of a request in the list: known once it has ended.
function phasesOf({ arrived, admitted, first_token: first, finished }) {
  if (finished === null || arrived === null) return [];
  const began = admitted ?? finished;
  const decoding = first ?? finished;
  return [{ name: "queue", seconds: began - arrived }, { name: "prefill", seconds: decoding - began }, { name: "decode", seconds: finished - decoding }];
}

function phaseBars(phases) {
  return phases.filter(({ seconds }) => seconds > 0).map(({ name, seconds }) => {
    const bar = el("i", { class: name, title: `${name} ${duration(seconds)}` });
    bar.style.flexGrow = seconds;
    return bar;
  });
}
