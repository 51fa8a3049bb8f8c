// The live feed: one connection that heals by itself, and what it has told so far. Draws nothing.

import { call, eventsOf, Refused } from "./api.js";

const HISTORY_SECONDS = 300;
const KEPT_ROUNDS = 600; // of one request
const KEPT_REQUESTS = 100;
const SILENCE_MS = 15_000; // the server has a beat of five seconds
const HIDDEN_MS = 60_000;
const LONGEST_WAIT_MS = 15_000;

export class Feed extends EventTarget {
  server = null;
  reasons = new Map();
  columns = null;
  load = { status: "unknown", running: 0, waiting: 0 };
  seconds = [];
  running = new Map();
  recent = []; // newest first; `rounds` are those that were seen
  earnings = null;
  connection = { state: "connecting", text: "connecting" };
  ready = false;
  #clock = 0; // the server's clock beyond ours, in seconds
  #abort = null;
  #failures = 0;
  #timer = 0;
  #hidden = 0;

  start() {
    document.addEventListener("visibilitychange", () => this.#visible(!document.hidden));
    this.connect();
  }

  // Seconds since 1970, by the server's clock.
  now() {
    return Date.now() / 1000 + this.#clock;
  }

  async connect() {
    clearTimeout(this.#timer);
    this.#abort?.abort();
    const abort = (this.#abort = new AbortController());
    let silence = 0;
    const heard = () => {
      clearTimeout(silence);
      silence = setTimeout(() => abort.abort("silence"), SILENCE_MS);
    };
    this.#say(this.ready ? "waiting" : "connecting", this.ready ? "reconnecting" : "connecting");
    try {
      heard();
      const response = await call("live/events", { signal: abort.signal });
      for await (const { name, data } of eventsOf(response)) {
        heard();
        this.#take(name, JSON.parse(data));
      }
      throw new Error("the server ended the stream");
    } catch (error) {
      if (abort === this.#abort) this.#lost(error);
    } finally {
      clearTimeout(silence);
    }
  }

  #take(name, told) {
    this.#clock = told.now - Date.now() / 1000;
    if (name === "snapshot") this.#open(told);
    else if (name === "update") this.#update(told);
    this.#failures = 0;
    this.#say("live", told.load?.status === "draining" || this.load.status === "draining" ? "takes no new requests" : "live");
    this.dispatchEvent(new Event(name === "beat" ? "beat" : "change"));
  }

  #open(told) {
    this.server = told.server;
    this.columns = told.columns;
    this.reasons = new Map(told.reasons.map((one) => [one.code, one]));
    this.load = told.load;
    this.seconds = told.seconds;
    this.earnings = told.earnings ?? null;
    const strips = new Map(this.recent.map((one) => [one.id, one.rounds]));
    this.running = new Map(told.running.map((one) => [one.id, one]));
    const seen = (one) => ((strips.get(one.id)?.length ?? 0) > one.rounds.length ? strips.get(one.id) : one.rounds);
    this.recent = told.recent.map((one) => ({ ...one, rounds: seen(one) })).reverse();
    this.ready = true;
    this.dispatchEvent(new Event("open"));
  }

  #update(told) {
    this.load = told.load;
    this.earnings = told.earnings ?? this.earnings;
    for (const second of told.seconds) {
      const at = this.seconds.findIndex((one) => one.at === second.at);
      if (at >= 0) this.seconds[at] = second;
      else this.seconds.push(second);
    }
    this.seconds = this.seconds.slice(-HISTORY_SECONDS);
    for (const one of told.started) this.running.set(one.id, { ...one, tokens: 0, rounds: [] });
    const { emitted } = this.#at();
    for (const [id, rounds] of Object.entries(told.rounds)) {
      const one = this.running.get(id);
      if (!one) continue;
      one.rounds = one.rounds.concat(rounds).slice(-KEPT_ROUNDS);
      one.tokens += rounds.reduce((sum, round) => sum + round[emitted], 0);
    }
    for (const ended of told.finished) {
      const rounds = this.running.get(ended.id)?.rounds ?? [];
      this.running.delete(ended.id);
      this.recent.unshift({ ...ended, rounds });
    }
    this.recent.length = Math.min(this.recent.length, KEPT_REQUESTS);
  }

  // Where things stand in a round, by name.
  #at() {
    return Object.fromEntries(this.columns.round.map((name, index) => [name, index]));
  }

  #lost(error) {
    if (error instanceof Refused && error.status === 401) {
      this.#say("locked", "key needed");
      return;
    }
    this.#failures += 1;
    const longest = Math.min(LONGEST_WAIT_MS, 500 * 2 ** (this.#failures - 1));
    const wait = longest * (0.7 + 0.3 * Math.random()); // many pages must not come back at once
    const why = error instanceof Refused ? error.message : "The connection to the server is lost.";
    this.#say("lost", "disconnected", `${why} Trying again ${wait < 1500 ? "at once" : `in ${Math.round(wait / 1000)} s`}.`);
    this.#timer = setTimeout(() => this.connect(), wait);
  }

  // Nobody looks at a hidden page: after a while it lets the server go.
  #visible(shown) {
    clearTimeout(this.#hidden);
    if (!shown) {
      this.#hidden = setTimeout(() => {
        clearTimeout(this.#timer);
        const abort = this.#abort;
        this.#abort = null;
        abort?.abort();
        this.#say("waiting", "paused");
      }, HIDDEN_MS);
    } else if (this.#abort === null) this.connect();
  }

  #say(state, text, detail = "") {
    this.connection = { state, text, detail };
    this.dispatchEvent(new Event("connection"));
  }
}

// Sums over the seconds from `from` on, column by column.
export function sums(seconds, from) {
  const total = { rows: 0, ended: 0, off: [], emitted: 0, drafted: 0, accepted: 0, nodes: 0, drafting: 0, busy: 0, depths: [], reasons: [], drafters: [], tasks: new Map(), compared: null };
  for (const one of seconds) {
    if (one.at < from) continue;
    for (const name of ["rows", "ended", "emitted", "drafted", "accepted", "nodes", "busy"]) total[name] += one[name];
    for (const name of ["depths", "reasons", "off"]) one[name].forEach((value, i) => (total[name][i] = (total[name][i] ?? 0) + value));
    one.drafters.forEach((own, i) => {
      total.drafting += own[0];
      total.drafters[i] = own.map((value, j) => value + (total.drafters[i]?.[j] ?? 0));
    });
    for (const [task, own] of Object.entries(one.tasks)) {
      const before = total.tasks.get(task);
      total.tasks.set(task, own.map((value, j) => value + (before?.[j] ?? 0)));
    }
    if (one.compared) total.compared = one.compared.map((value, j) => value + (total.compared?.[j] ?? 0));
  }
  return total;
}
