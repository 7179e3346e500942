// Runs before the first paint, so that a chosen theme does not flash: a classic script, not a module.
{
  let theme = null;
  try {
    theme = localStorage.getItem('headgate.theme');
  } catch {
    // storage is off: the system's theme it is
  }
  if (theme === 'light' || theme === 'dark') document.documentElement.dataset.theme = theme;
}
