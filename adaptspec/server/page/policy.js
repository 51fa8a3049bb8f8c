// The policies that are served, as text; with the admin key, one can be changed: it is checked while it is typed.

import { $, el, say } from "./dom.js";
import { call, key, Refused, setKey } from "./feed.js";

const PAUSE_MS = 350; // after the last key, before the text is checked
const NO_ADMIN = "To edit policies here, start the server with an admin key: set ADAPTSPEC_ADMIN_KEY, or give --admin-key-file.";

export class Policy {
  #feed;
  #shown = null; // {id, yaml, description, default}
  #editing = false;
  #pause = 0;
  #check = null;

  constructor(feed) {
    this.#feed = feed;
    $("policy-select").addEventListener("change", () => this.#mayLeave() && this.#show($("policy-select").value));
    $("policy-edit").addEventListener("click", () => this.#wantEdit());
    $("policy-discard").addEventListener("click", () => this.#view());
    $("policy-apply").addEventListener("click", () => this.#apply());
    $("admin-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#unlock($("admin-key").value.trim());
    });
    $("admin-cancel").addEventListener("click", () => ($("admin-form").hidden = true));
    $("yaml-edit").addEventListener("input", () => this.#onInput());
    for (const id of ["yaml", "yaml-edit"]) $(id).addEventListener("scroll", () => this.#align());
  }

  // An edit in progress outlives a connection that was lost.
  async open() {
    const { policies, default_policy: standard } = this.#feed.server;
    const name = policies.includes(this.#shown?.id) ? this.#shown.id : standard;
    $("policy-select").replaceChildren(...policies.map((id) => el("option", { value: id }, id === standard ? `${id} (default)` : id)));
    $("policy-select").value = name;
    if (!this.#editing) await this.#show(name);
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
    this.#setEditing(false);
    const { id, description, default: isDefault, yaml } = this.#shown;
    say($("policy-about"), `${id}${isDefault ? ", the default" : ", for requests that ask for it"}. ${description}`);
    this.#paint(yaml);
  }

  // The coloured text below the editor is for the eye only while one edits.
  #setEditing(editing) {
    this.#editing = editing;
    clearTimeout(this.#pause);
    $("workbench").classList.toggle("editing", editing);
    $("policy-side").hidden = $("yaml-edit").hidden = !editing;
    $("policy-edit").hidden = editing;
    $("yaml").tabIndex = editing ? -1 : 0;
    $("yaml").setAttribute("aria-hidden", String(editing));
    $("problems").replaceChildren();
  }

  #paint(text, wrong = new Set()) {
    const lines = text.split("\n");
    $("yaml").replaceChildren(...lines.flatMap((line, i) => [el("span", { class: wrong.has(i + 1) && "wrong" }, ...coloured(line)), "\n"]));
    $("gutter").replaceChildren(...lines.flatMap((_, i) => [el("span", { class: wrong.has(i + 1) && "wrong" }, String(i + 1)), "\n"]));
    this.#align();
  }

  #align() {
    const top = this.#editing ? $("yaml-edit") : $("yaml");
    $("gutter").scrollTop = $("yaml").scrollTop = top.scrollTop;
    $("yaml").scrollLeft = top.scrollLeft;
  }

  #wantEdit() {
    if (!this.#feed.server.admin) say($("policy-about"), NO_ADMIN);
    else if (key("admin")) this.#unlock(key("admin"));
    else this.#askKey("");
  }

  #askKey(why) {
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
      this.#askKey(error instanceof Refused && error.status === 401 ? "That is not the admin key." : error.message);
      return;
    }
    $("admin-form").hidden = true;
    $("admin-key").value = "";
    this.#edit();
  }

  #edit() {
    const text = $("yaml-edit");
    text.value = this.#shown.yaml;
    this.#setEditing(true);
    text.focus();
    text.setSelectionRange(0, 0);
    this.#onInput();
  }

  #mayLeave() {
    const changed = this.#editing && $("yaml-edit").value !== this.#shown.yaml;
    if (!changed || confirm("Discard the changes to this policy?")) return true;
    $("policy-select").value = this.#shown.id;
    return false;
  }

  #onInput() {
    this.#paint($("yaml-edit").value);
    $("policy-apply").disabled = true;
    clearTimeout(this.#pause);
    this.#pause = setTimeout(() => this.#validate(), PAUSE_MS);
  }

  async #validate() {
    this.#check?.abort();
    const check = (this.#check = new AbortController());
    const text = $("yaml-edit").value;
    try {
      const answer = await call("admin/policies?dry_run=true", { admin: true, text, signal: check.signal });
      const { problems, name, replaces } = await answer.json();
      if (check === this.#check && this.#editing) this.#onChecked(text, problems, name, replaces);
    } catch (error) {
      if (error.name !== "AbortError" && this.#editing) this.#status(error.message, "error");
    }
  }

  #onChecked(text, problems, name, replaces) {
    const unchanged = text === this.#shown.yaml;
    $("yaml-edit").setAttribute("aria-invalid", String(problems.length > 0));
    $("policy-apply").disabled = problems.length > 0 || unchanged;
    this.#paint(text, new Set(problems.map((problem) => problem.line)));
    $("problems").replaceChildren(
      ...problems.map((problem) => {
        const location = problem.line === null ? null : el("b", {}, `line ${problem.line}, column ${problem.column}`);
        return el("li", {}, el("button", { type: "button", onclick: () => select($("yaml-edit"), problem) }, location, problem.message));
      }),
    );
    if (problems.length) this.#status(problems.length > 1 ? `${problems.length} problems` : "1 problem", "error");
    else if (unchanged) this.#status("No changes yet.", "muted");
    else this.#status(`Valid. ${replaces ? `Applying it replaces ${name}.` : `Applying it adds ${name}, for requests that ask for it.`}`, "good");
  }

  #status(text, cls) {
    $("policy-status").className = cls;
    say($("policy-status"), text);
  }

  async #apply() {
    $("policy-apply").disabled = true;
    try {
      const answer = await call("admin/policies", { admin: true, text: $("yaml-edit").value });
      const { name, replaced, carried } = await answer.json();
      if (!this.#feed.server.policies.includes(name)) this.#feed.server.policies.push(name);
      this.#editing = false;
      this.#shown = { id: name };
      this.#feed.dispatchEvent(new Event("policies"));
      await this.open();
      const kept = carried ? ", with what it had learned" : "";
      say($("policy-about"), `${name} ${replaced ? "was replaced" : "is served now"}${kept}. It decides from the next round on.`);
      $("policy-edit").focus();
    } catch (error) {
      this.#status(error.message, "error");
    }
  }
}

function select(text, { line, column }) {
  if (line === null) return;
  const before = text.value.split("\n").slice(0, line - 1).join("\n").length;
  const start = before + (line > 1 ? 1 : 0) + column - 1;
  const word = /^[\w.-]+/.exec(text.value.slice(start))?.[0].length ?? 1;
  text.focus();
  text.setSelectionRange(start, start + word);
  text.scrollTop = Math.max(0, (line - 4) * parseFloat(getComputedStyle(text).lineHeight));
}

// A line of YAML in colours: comments, quoted words, keys, numbers. Not a parser: the server knows what is right.
const TOKEN = /(#.*$)|("(?:[^"\\]|\\.)*"|'(?:[^']|'')*')|([A-Za-z_][\w./-]*)(?=\s*:(?:\s|$))|(-?\b\d[\d_]*(?:\.\d+)?(?:[eE][-+]?\d+)?\b|\b(?:true|false|null)\b)/g;

function coloured(line) {
  const parts = [];
  let done = 0;
  for (const match of line.matchAll(TOKEN)) {
    const [text, comment, string, name] = match;
    if (comment && match.index && !/\s/.test(line[match.index - 1])) continue; // a # within a word begins no comment
    parts.push(line.slice(done, match.index));
    parts.push(el("span", { class: comment ? "comment" : string ? "string" : name ? "key" : "number" }, text));
    done = match.index + text.length;
  }
  return [...parts, line.slice(done)];
}
