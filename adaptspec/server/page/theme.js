// Light or dark: as the system says, unless the reader has chosen. Runs before the first paint, so it is no module.
(() => {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const stored = () => {
    try {
      return localStorage.getItem("adaptspec-theme");
    } catch {
      return null; // storage is switched off: the system decides
    }
  };
  let chosen = stored();
  const apply = () => {
    document.documentElement.dataset.theme = chosen ?? (system.matches ? "dark" : "light");
    document.dispatchEvent(new CustomEvent("theme", { detail: chosen ?? "system" }));
  };
  system.addEventListener("change", apply);
  window.nextTheme = () => {
    const shown = document.documentElement.dataset.theme;
    const other = shown === "dark" ? "light" : "dark";
    // What the system says anyway is no choice: it may go on following the system then.
    chosen = other === (system.matches ? "dark" : "light") ? null : other;
    try {
      if (chosen) localStorage.setItem("adaptspec-theme", chosen);
      else localStorage.removeItem("adaptspec-theme");
    } catch {
      // the choice lasts as long as the page
    }
    apply();
  };
  apply();
})();
