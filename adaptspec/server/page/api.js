// Calls to the server, with the keys the reader gave. Keys live as long as the tab.

const held = new Map();

export function key(kind) {
  if (!held.has(kind)) {
    try {
      held.set(kind, sessionStorage.getItem(`adaptspec-${kind}`) ?? "");
    } catch {
      held.set(kind, "");
    }
  }
  return held.get(kind);
}

export function setKey(kind, value) {
  held.set(kind, value);
  try {
    if (value) sessionStorage.setItem(`adaptspec-${kind}`, value);
    else sessionStorage.removeItem(`adaptspec-${kind}`);
  } catch {
    // storage is switched off: the key lasts as long as the page
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
    const said = await response.json().catch(() => null);
    throw new Refused(response.status, said?.error?.message ?? `the server answered ${response.status}`);
  }
  return response;
}

// The server-sent events of an answer, as {name, data}.
export async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      waiting += value;
      let end;
      while ((end = waiting.indexOf("\n\n")) >= 0) {
        const block = waiting.slice(0, end);
        waiting = waiting.slice(end + 2);
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
