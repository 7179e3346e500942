/**
 * The theme: as the system has it, or light, or dark; remembered in this browser.
 * @module
 */

import { mark, say } from './dom.js';

const KEY = 'headgate.theme';
const ORDER = ['auto', 'light', 'dark'];
const SIGNS = { auto: '◐', light: '☀', dark: '☾' };

function kept() {
  try {
    const theme = localStorage.getItem(KEY);
    return ORDER.includes(theme) ? theme : 'auto';
  } catch {
    return 'auto'; // storage is off
  }
}

/** Make a button that goes round the themes. @param {HTMLButtonElement} button @returns {() => void} goes on by one */
export function themed(button) {
  let theme = kept();
  const show = () => {
    mark(document.documentElement, 'data-theme', theme === 'auto' ? null : theme);
    say(button, SIGNS[theme]);
    mark(button, 'aria-label', `Theme: ${theme === 'auto' ? 'as the system' : theme}`);
  };
  const next = () => {
    theme = ORDER[(ORDER.indexOf(theme) + 1) % ORDER.length];
    try {
      localStorage.setItem(KEY, theme);
    } catch {
      // storage is off: it lasts as long as the page
    }
    show();
  };
  button.addEventListener('click', next);
  show();
  return next;
}
