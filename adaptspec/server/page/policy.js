// The policies that serve, as text; and, with the admin key, changing one: checked while it is typed, tried, applied.

import { call, key, Refused, setKey } from "./api.js";
import { $, el, say } from "./dom.js";
import { count, fixed, percent, times } from "./format.js";
import { gutter, highlighted } from "./yaml.js";

const PAUSE_MS = 350; // after the last key, before the text is checked
const PLACE = /^<body>:(\d+):(\d+): (.*)$/;

export class Policy {
  #feed;
  #shown = null; // {id, yaml, description, default}
  #editing = false;
  #pause = 0;
  #check = null;
  #valid = false;

  constructor(feed) {
    this.#feed = feed;
    $("policy-select").addEventListener("change", () => this.#leave() && this.#show($("policy-select").value));
    $("policy-edit").addEventListener("click", () => this.#wantEdit());
    $("policy-discard").addEventListener("click", () => this.#view());
    $("policy-simulate").addEventListener("click", () => this.#simulate());
    $("policy-apply").addEventListener("click", () => this.#apply());
    $("admin-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#unlock($("admin-key").value.trim());
    });
    $("admin-cancel").addEventListener("click", () => ($("admin-form").hidden = true));
    const text = $("yaml-edit");
    text.addEventListener("input", () => this.#typed());
    text.addEventListener("scroll", () => this.#align());
    $("yaml").addEventListener("scroll", () => ($("gutter").scrollTop = $("yaml").scrollTop));
  }

  // The server has said what it serves; an edit in progress is left alone.
  async open() {
    const { policies, default_policy: standard } = this.#feed.server;
    const select = $("policy-select");
    const before = this.#shown && policies.includes(this.#shown.id) ? this.#shown.id : standard;
    select.replaceChildren(...policies.map((name) => el("option", { value: name }, name === standard ? `${name} (in force)` : name)));
    select.value = before;
    if (!this.#editing) await this.#show(before);
  }

  async #show(name) {
    try {
      this.#shown = await (await call(`v1/policies/${encodeURIComponent(name)}`)).json();
      this.#view();
    } catch (error) {
      say($("policy-about"), `The policy cannot be shown: ${error.message}`);
    }
  }

  #view() {
    this.#editing = false;
    clearTimeout(this.#pause);
    $("policy").querySelector(".bench").classList.remove("editing");
    $("policy-side").hidden = $("yaml-edit").hidden = true;
    $("policy-edit").hidden = false;
    $("yaml").tabIndex = 0;
    $("yaml").removeAttribute("aria-hidden");
    $("problems").replaceChildren();
    $("trial").replaceChildren();
    const { id, description, default: inForce, yaml } = this.#shown;
    say($("policy-about"), `${inForce ? "In force" : "Served on request"}: ${id}. ${description}`);
    this.#paint(yaml);
  }

  #paint(text, bad = new Set()) {
    $("yaml").replaceChildren(...highlighted(text, bad));
    $("gutter").replaceChildren(...gutter(text, bad));
  }

  #wantEdit() {
    if (!this.#feed.server.admin) {
      say($("policy-about"), "To edit policies here, start the server with an admin key: set ADAPTSPEC_ADMIN_KEY, or give --admin-key-file.");
    } else if (key("admin")) this.#unlock(key("admin"));
    else this.#ask("");
  }

  #ask(why) {
    $("admin-form").hidden = false;
    say($("admin-error"), why);
    $("admin-key").focus();
  }

  async #unlock(given) {
    setKey("admin", given);
    try {
      await call("admin/policies", { admin: true });
    } catch (error) {
      setKey("admin", "");
      this.#ask(error instanceof Refused && error.status === 401 ? "That is not the admin key." : error.message);
      return;
    }
    $("admin-form").hidden = true;
    $("admin-key").value = "";
    this.#edit();
  }

  #edit() {
    this.#editing = true;
    $("policy").querySelector(".bench").classList.add("editing");
    $("policy-side").hidden = false;
    $("policy-edit").hidden = true;
    const text = $("yaml-edit");
    text.hidden = false;
    text.value = this.#shown.yaml;
    // The coloured text beneath is for the eye only now.
    $("yaml").tabIndex = -1;
    $("yaml").setAttribute("aria-hidden", "true");
    const tried = this.#feed.server.journal;
    $("policy-simulate").disabled = !tried;
    say($("policy-note"), tried ? "Simulate replays the newest requests of the journal under this policy." : "The journal is off: start the server with --journal FILE to simulate policies on its traffic.");
    text.focus();
    text.setSelectionRange(0, 0);
    this.#typed();
  }

  #leave() {
    const changed = this.#editing && $("yaml-edit").value !== this.#shown.yaml;
    if (!changed || confirm("Discard the changes to this policy?")) return true;
    $("policy-select").value = this.#shown.id;
    return false;
  }

  #typed() {
    $("trial").replaceChildren();
    this.#paint($("yaml-edit").value);
    this.#align();
    $("policy-apply").disabled = true;
    clearTimeout(this.#pause);
    this.#pause = setTimeout(() => this.#validate(), PAUSE_MS);
  }

  #align() {
    const text = $("yaml-edit");
    for (const below of [$("yaml"), $("gutter")]) below.scrollTop = text.scrollTop;
    $("yaml").scrollLeft = text.scrollLeft;
  }

  async #validate() {
    this.#check?.abort();
    const check = (this.#check = new AbortController());
    try {
      const answer = await call("admin/policies/validate", { admin: true, text: $("yaml-edit").value, signal: check.signal });
      const { valid, problems, name, replaces } = await answer.json();
      if (check !== this.#check || !this.#editing) return;
      if (valid) this.#good(name, replaces);
      else this.#wrong(problems);
    } catch (error) {
      if (error.name !== "AbortError" && this.#editing) this.#status(error.message, "error");
    }
  }

  #good(name, replaces) {
    $("problems").replaceChildren();
    $("yaml-edit").removeAttribute("aria-invalid");
    this.#paint($("yaml-edit").value);
    this.#align();
    const unchanged = $("yaml-edit").value === this.#shown.yaml;
    $("policy-apply").disabled = unchanged;
    $("policy-simulate").disabled = !this.#feed.server.journal;
    const next = replaces ? `Applying it replaces ${name}.` : `Applying it adds ${name}, for requests that ask for it.`;
    this.#status(unchanged ? "No changes yet." : `Valid. ${next}`, unchanged ? "muted" : "good");
  }

  #wrong(problems) {
    const text = $("yaml-edit");
    const placed = problems.some((one) => one.line);
    text.setAttribute("aria-invalid", String(placed));
    this.#paint(text.value, new Set(problems.map((one) => one.line)));
    this.#align();
    $("policy-apply").disabled = $("policy-simulate").disabled = true;
    this.#status(placed ? (problems.length > 1 ? `${problems.length} problems` : "1 problem") : "It cannot be used.", "error");
    $("problems").replaceChildren(...problems.map((one) => el(
      "li",
      {},
      el("button", { type: "button", onclick: () => goTo(text, one) }, one.line ? el("b", {}, `line ${one.line}, column ${one.column}`) : null, one.message),
    )));
  }

  #status(text, cls) {
    const status = $("policy-status");
    say(status, text);
    status.className = cls;
  }

  async #simulate() {
    const button = $("policy-simulate");
    button.disabled = true;
    $("policy").setAttribute("aria-busy", "true");
    this.#status("Replaying the newest requests ...", "muted");
    try {
      const text = $("yaml-edit").value;
      const trial = await (await call("admin/policies/simulate", { admin: true, text })).json();
      if (!this.#editing || text !== $("yaml-edit").value) return; // it has changed meanwhile: the figures are of another
      $("trial").replaceChildren(outcome(trial));
      this.#status("Simulated; nothing has changed yet.", "muted");
    } catch (error) {
      this.#refused(error);
    } finally {
      $("policy").removeAttribute("aria-busy");
      button.disabled = !this.#feed.server.journal;
    }
  }

  async #apply() {
    $("policy-apply").disabled = true;
    const text = $("yaml-edit").value;
    try {
      const { name, replaced, carried } = await (await call("admin/policies", { admin: true, text })).json();
      if (!this.#feed.server.policies.includes(name)) this.#feed.server.policies.push(name);
      this.#editing = false;
      this.#shown = { id: name };
      await this.open();
      this.#feed.dispatchEvent(new Event("policies"));
      const kept = carried ? ", and goes on from what it had learned" : "";
      say($("policy-about"), `${name} ${replaced ? "was replaced" : "is served now"}${kept}. It decides from the next round on.`);
      $("policy-edit").focus();
    } catch (error) {
      this.#refused(error);
    }
  }

  // What validation let through and the server refused all the same.
  #refused(error) {
    const problems = error.message.split("\n").map((said) => {
      const found = PLACE.exec(said);
      return found && { line: Number(found[1]), column: Number(found[2]), message: found[3] };
    });
    if (problems.every(Boolean)) this.#wrong(problems);
    else this.#status(error.message, "error");
  }
}

function goTo(text, { line, column }) {
  if (!line) return;
  const lines = text.value.split("\n");
  const at = lines.slice(0, line - 1).reduce((sum, one) => sum + one.length + 1, 0) + column - 1;
  const word = /^[\w.-]+/.exec(text.value.slice(at))?.[0].length ?? 1;
  text.focus();
  text.setSelectionRange(at, at + word);
  text.scrollTop = Math.max(0, (line - 4) * parseFloat(getComputedStyle(text).lineHeight));
}

function outcome(trial) {
  const runs = [["as edited", trial.edited, "accent"], ["in force now", trial.current, "prefill"], ["best fixed depth", trial.best_static, "prefill"], ["plain decoding", trial.off, "off"]].filter(([, run]) => run);
  const most = Math.max(...runs.map(([, run]) => run.over_off));
  const bars = runs.map(([name, run, shade]) => {
    const fill = el("div", { cls: "fill", width: `${(100 * run.over_off) / most}%` });
    fill.style.background = `var(--${shade})`;
    const detail = run.duty ? `, length ${fixed(run.acceptance_length, 2)}, drafts in ${percent(run.duty)} of rounds` : "";
    return el(
      "div",
      {},
      el("div", { cls: "label" }, el("b", {}, name), el("span", {}, `${times(run.over_off)} plain`)),
      el("div", { cls: "track" }, fill),
      el("div", { cls: "note" }, `${run.policy}: ${count(run.goodput)} tokens per second${detail}`),
    );
  });
  const gain = trial.current ? trial.edited.goodput / trial.current.goodput : null;
  const said = gain === null ? "" : `${times(gain)} what serves now.`;
  const notes = [
    `From ${count(trial.requests)} requests, ${count(trial.tokens)} tokens, ${trial.batch} at a time, at the costs this machine measured.`,
    `The journal knows ${percent(trial.known)} of the positions; the others are drawn from like ones, so deeper drafts than those it saw are guesses.`,
    trial.left_out.length ? `Simulated without ${trial.left_out.join(", ")}, which a journal cannot replay.` : "",
    trial.current_error ?? "",
  ].filter(Boolean);
  return el("div", { cls: "trial" }, el("h3", {}, `Estimate: ${said || times(trial.edited.over_off) + " plain decoding."}`), el("div", { cls: "shares" }, ...bars), ...notes.map((note) => el("p", { cls: "muted small" }, note)));
}
