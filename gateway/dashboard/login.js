/**
 * Turns the secret of a one-time link into a login cookie. The secret stands in the fragment, which browsers send to
 * nobody; it leaves the address bar and the history at once.
 * @module
 */

const text = document.getElementById('login-text');
const more = document.getElementById('login-more');

/** Say what went wrong, and how to go on. */
function refuse(why) {
  text.textContent = why;
  more.hidden = false;
}

/** What the gateway says to a refused link, in words. */
async function reasonOf(answer) {
  try {
    const body = await answer.json();
    return body.text ?? body.detail ?? body.error ?? '';
  } catch {
    return ''; // no JSON: the status has to do
  }
}

async function login() {
  const once = new URLSearchParams(location.hash.slice(1)).get('once');
  history.replaceState(null, '', location.pathname);
  if (!once) {
    refuse('This address holds no one-time link.');
    return;
  }
  const answer = await fetch('v1/login', {
    method: 'POST', credentials: 'same-origin', headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify({ once }),
  });
  if (answer.ok) {
    location.replace('./');
    return;
  }
  const why = await reasonOf(answer);
  refuse(`The gateway did not take this link${why ? `: ${why}` : ''} (${answer.status}).`);
}

login().catch(() => refuse('The gateway does not answer. Load this page again once it runs.'));
