/**
 * Close codes of the gateway: 4000 to 4499 mean "connect again", 4500 to 4999 "do not" (PROTOCOL.md).
 * @module
 */

/** Close code -> [name, what it means]. */
export const CLOSES = Object.freeze({
  1000: ['normal', 'the client asked for the end'],
  1001: ['going-away', 'the server or the page leaves'],
  1002: ['protocol', 'a frame broke RFC 6455'],
  1006: ['lost', 'the connection was lost'],
  1007: ['invalid-text', 'a text frame or close reason is not UTF-8'],
  1009: ['too-big', 'a message above the announced limit'],
  4000: ['shutdown', 'the gateway leaves or restarts'],
  4001: ['internal', 'a fault of the gateway; its log has the reason'],
  4002: ['slow', 'the client reads too slowly: more waits for it than its limits allow'],
  4003: ['no-pong', 'the client answered no ping in time'],
  4004: ['expired', 'the credential expired; connect with a fresh one'],
  4005: ['busy', 'too many connections at the moment'],
  4006: ['ended', 'the session was ended by an administrator; a new one may begin'],
  4500: ['bad-credential', 'the credential is missing, wrong or of another user'],
  4501: ['no-role', 'the user has no role here'],
  4502: ['auth-timeout', 'no credential came in time'],
  4503: ['bad-message', 'bytes that are no message of this subprotocol'],
  4504: ['too-many', 'the user has as many connections as allowed'],
  4506: ['revoked', 'the credential was revoked'],
  4507: ['flood', 'the client went on sending above its rate limit'],
});

/** Codes below 4000 after which it makes sense to connect again. */
const AGAIN = new Set([1001, 1006, 1011, 1012, 1013]);

/**
 * Whether to connect again after a close with `code`; a code that is not listed follows its range.
 * @param {number} code
 * @returns {boolean}
 */
export function reconnects(code) {
  return AGAIN.has(code) || (code >= 4000 && code < 4500);
}

/**
 * Name and meaning of a close code.
 * @param {number} code
 * @returns {{code: number, name: string, text: string, reconnect: boolean}}
 */
export function closeMeaning(code) {
  const [name, text] = CLOSES[code] ?? [`code-${code}`, 'a close code this client does not know'];
  return { code, name, text, reconnect: reconnects(code) };
}
