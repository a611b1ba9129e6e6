// Loaded before the first paint, so that a chosen theme does not flash.
try {
  const chosen = localStorage.getItem("reshift.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // storage may be forbidden; the system's theme is used then
}
