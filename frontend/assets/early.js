/* Before anything is drawn: which scheme. The cookie lets the server colour the charts rightly at the first time. */
(function () {
  "use strict";
  var stored = null;
  try { stored = window.localStorage.getItem("mantine-color-scheme-value"); } catch (e) { stored = null; }
  var dark = window.matchMedia("(prefers-color-scheme: dark)").matches;
  var scheme = stored === "light" || stored === "dark" ? stored : dark ? "dark" : "light";
  var root = document.documentElement;
  function remember() {
    document.cookie = "rlv-scheme=" + root.getAttribute("data-mantine-color-scheme") + "; path=/; SameSite=Lax; max-age=31536000";
  }
  root.setAttribute("data-mantine-color-scheme", scheme);
  remember();
  new MutationObserver(remember).observe(root, { attributes: true, attributeFilter: ["data-mantine-color-scheme"] });
})();
