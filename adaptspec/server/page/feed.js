// The server's side: calls with the reader's keys, and the live feed, one connection that heals by itself. Draws nothing.

const HISTORY_SECONDS = 300;
const KEPT_ROUNDS = 120; // of one request
const KEPT_REQUESTS = 100;
const SILENCE_MS = 15_000; // the server sends a beat every five seconds
const HIDDEN_MS = 60_000;
const LONGEST_WAIT_MS = 15_000;

// Keys live as long as the tab; where storage is switched off, as long as the page.
const keys = new Map();

export function key(kind) {
  if (!keys.has(kind)) {
    try {
      keys.set(kind, sessionStorage.getItem(`adaptspec-${kind}`) ?? "");
    } catch {
      keys.set(kind, "");
    }
  }
  return keys.get(kind);
}

export function setKey(kind, value) {
  keys.set(kind, value);
  try {
    sessionStorage.setItem(`adaptspec-${kind}`, value);
  } catch {
    // see `keys`
  }
}

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// An answer with a good status; anything else throws Refused with the server's own words.
export async function call(path, { admin = false, json, text, signal } = {}) {
  const headers = {};
  const bearer = key(admin ? "admin" : "api");
  if (bearer) headers.Authorization = `Bearer ${bearer}`;
  if (json !== undefined) headers["Content-Type"] = "application/json";
  const body = json !== undefined ? JSON.stringify(json) : text;
  const response = await fetch(path, { method: body === undefined ? "GET" : "POST", headers, body, signal, cache: "no-store" });
  if (!response.ok) {
    const answer = await response.json().catch(() => null);
    throw new Refused(response.status, answer?.error?.message ?? `the server answered ${response.status}`);
  }
  return response;
}

// The server-sent events of an answer, as {name, data}.
export async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const blocks = (buffer + value).split("\n\n");
      buffer = blocks.pop();
      for (const block of blocks) {
        let name = "message";
        let data = "";
        for (const line of block.split("\n")) {
          if (line.startsWith("event: ")) name = line.slice(7);
          else if (line.startsWith("data: ")) data += line.slice(6);
        }
        if (data) yield { name, data };
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // already closed: nothing to cancel
  }
}

// Rows of numbers as objects with names.
export const named = (columns, rows) => rows.map((row) => Object.fromEntries(columns.map((name, i) => [name, row[i]])));

// Dispatches `open` after each snapshot, `change` after each event, `connection` when the connection's state changes, and
// `policies` when the page changed which are served.
export class Feed extends EventTarget {
  server = null;
  reasons = new Map(); // by code: {name, words}
  load = null;
  summary = { recent: null, total: null };
  costsUnsure = false;
  missedRounds = 0;
  seconds = [];
  requests = new Map(); // by id, oldest first, running ones and those that ended lately
  connection = { state: "connecting", text: "connecting", detail: "" };
  #columns = [];
  #clockOffset = 0; // of the server's clock to this one, in seconds
  #abort = null;
  #failures = 0;
  #retry = 0;
  #hidden = 0;

  start() {
    document.addEventListener("visibilitychange", () => this.#onVisibility(!document.hidden));
    this.connect();
  }

  // Seconds since 1970, by the server's clock.
  now() {
    return Date.now() / 1000 + this.#clockOffset;
  }

  async connect() {
    clearTimeout(this.#retry);
    this.#abort?.abort();
    const abort = (this.#abort = new AbortController());
    let silence = 0;
    const restartSilence = () => {
      clearTimeout(silence);
      silence = setTimeout(() => abort.abort("silence"), SILENCE_MS);
    };
    this.#setConnection("waiting", this.server ? "reconnecting" : "connecting");
    try {
      restartSilence();
      const response = await call("live/events", { signal: abort.signal });
      for await (const { name, data } of eventsOf(response)) {
        restartSilence();
        this.#handle(name, JSON.parse(data));
      }
      throw new Error("the server ended the stream");
    } catch (error) {
      if (abort === this.#abort) this.#onLoss(error);
    } finally {
      clearTimeout(silence);
    }
  }

  #handle(name, event) {
    this.#clockOffset = event.now - Date.now() / 1000;
    if (name === "snapshot") this.#open(event);
    else if (name === "update") this.#update(event);
    this.#failures = 0;
    this.#setConnection("live", this.load.status === "draining" ? "takes no new requests" : "live");
    this.dispatchEvent(new Event("change"));
  }

  #open(snapshot) {
    this.server = snapshot.server;
    this.reasons = new Map(snapshot.reasons.map((reason) => [reason.code, reason]));
    this.#columns = snapshot.columns.round;
    this.seconds = snapshot.seconds;
    const requests = [...snapshot.recent, ...snapshot.running];
    this.requests = new Map(requests.map((request) => [request.id, { ...request, rounds: named(this.#columns, request.rounds) }]));
    this.#figures(snapshot);
    this.dispatchEvent(new Event("open"));
  }

  #figures({ load, summary, costs_unsure, missed_rounds }) {
    this.load = load;
    this.summary = summary;
    this.costsUnsure = costs_unsure;
    this.missedRounds = missed_rounds;
  }

  #update(update) {
    this.#figures(update);
    const seconds = new Map(this.seconds.map((second) => [second.at, second]));
    for (const second of update.seconds) seconds.set(second.at, second);
    this.seconds = [...seconds.values()].slice(-HISTORY_SECONDS);
    for (const request of update.started) this.requests.set(request.id, { ...request, rounds: [] });
    for (const [id, rounds] of Object.entries(update.rounds)) {
      const request = this.requests.get(id);
      if (request) request.rounds = [...request.rounds, ...named(this.#columns, rounds)].slice(-KEPT_ROUNDS);
    }
    for (const [id, figures] of Object.entries(update.running)) Object.assign(this.requests.get(id) ?? {}, figures);
    for (const request of update.finished) {
      const { rounds = [] } = this.requests.get(request.id) ?? {};
      this.requests.delete(request.id);
      this.requests.set(request.id, { ...request, rounds });
    }
    const ended = [...this.requests.values()].filter((request) => request.state === "ended");
    for (const { id } of ended.slice(0, -KEPT_REQUESTS)) this.requests.delete(id);
  }

  #onLoss(error) {
    if (error instanceof Refused && error.status === 401) {
      this.#setConnection("locked", "key needed");
      return;
    }
    this.#failures += 1;
    const longest = Math.min(LONGEST_WAIT_MS, 500 * 2 ** (this.#failures - 1));
    const wait = longest * (0.7 + 0.3 * Math.random()); // many pages must not come back at once
    const why = error instanceof Refused ? error.message : "The connection to the server is lost.";
    this.#setConnection("lost", "disconnected", `${why} Trying again ${wait < 1500 ? "at once" : `in ${Math.round(wait / 1000)} s`}.`);
    this.#retry = setTimeout(() => this.connect(), wait);
  }

  // A page that stays hidden lets the server go.
  #onVisibility(visible) {
    clearTimeout(this.#hidden);
    if (visible) {
      if (this.#abort === null) this.connect();
      return;
    }
    this.#hidden = setTimeout(() => {
      clearTimeout(this.#retry);
      const abort = this.#abort;
      this.#abort = null;
      abort?.abort();
      this.#setConnection("waiting", "paused");
    }, HIDDEN_MS);
  }

  #setConnection(state, text, detail = "") {
    this.connection = { state, text, detail };
    this.dispatchEvent(new Event("connection"));
  }
}
