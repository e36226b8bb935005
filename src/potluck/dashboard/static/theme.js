// Applies the chosen theme before the page is drawn. Without a choice, the system's theme applies.
try {
  const theme = localStorage.getItem("potluck.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // A browser that forbids storage gets the system's theme.
}
