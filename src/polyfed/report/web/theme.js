/* Light or dark: the system's choice until somebody presses a button with the attribute data-theme-button; remembered.
   polyfedTheme.changed is called after every change, so that figures can be drawn in other colours. */
"use strict";
const polyfedTheme = (() => {
  const KEY = "polyfed-theme";
  const system = matchMedia("(prefers-color-scheme: dark)");
  const theme = { changed: () => {} };
  let chosen = null;
  try {
    chosen = localStorage.getItem(KEY);
  } catch {
    /* storage is off: nothing is remembered */
  }

  theme.isDark = () => (chosen ? chosen === "dark" : system.matches);

  function put() {
    if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
    document
      .querySelectorAll("[data-theme-button]")
      .forEach((button) => button.setAttribute("aria-pressed", String(theme.isDark())));
  }

  theme.begin = () => {
    put();
    document.querySelectorAll("[data-theme-button]").forEach((button) =>
      button.addEventListener("click", () => {
        chosen = theme.isDark() ? "light" : "dark";
        try {
          localStorage.setItem(KEY, chosen);
        } catch {
          /* as above */
        }
        put();
        theme.changed();
      }),
    );
    system.addEventListener("change", () => {
      put();
      theme.changed();
    });
  };
  put();
  return theme;
})();
