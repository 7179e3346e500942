/**
 * Errors as the Flux protocol knows them: a POSIX error number and a text.
 * @module
 */

/** Error numbers by name, as Linux has them: what a response's errnum means. */
export const ERRNO = Object.freeze({
  EPERM: 1, ENOENT: 2, EINTR: 4, EIO: 5, E2BIG: 7, EAGAIN: 11, ENOMEM: 12, EACCES: 13, EBUSY: 16, EEXIST: 17,
  ENODEV: 19, EINVAL: 22, ENOSPC: 28, EROFS: 30, EPIPE: 32, EDEADLK: 35, ENOSYS: 38, ENODATA: 61, EPROTO: 71,
  EOVERFLOW: 75, EMSGSIZE: 90, EOPNOTSUPP: 95, EADDRINUSE: 98, ENETUNREACH: 101, ECONNABORTED: 103,
  ECONNRESET: 104, ENOBUFS: 105, ESHUTDOWN: 108, ETIMEDOUT: 110, ECONNREFUSED: 111, EHOSTUNREACH: 113,
  EALREADY: 114, ESTALE: 116, EDQUOT: 122, ECANCELED: 125,
});

/** @type {Map<number, string>} */
const NAMES = new Map(Object.entries(ERRNO).map(([name, number]) => [number, name]));

const TEXTS = Object.freeze({
  EPERM: 'operation not permitted', ENOENT: 'no such thing', EAGAIN: 'try again', EEXIST: 'it is there already',
  EINVAL: 'invalid argument', ENOSYS: 'no such service or method', EPROTO: 'protocol error',
  EMSGSIZE: 'message too long', ECONNRESET: 'the connection was lost', ENOBUFS: 'read too slowly',
  ESHUTDOWN: 'the client is closed', ETIMEDOUT: 'no answer in time', EHOSTUNREACH: 'no way to that broker',
});

/**
 * Name of an error number.
 * @param {number} errno
 * @returns {string} like `"EPERM"`; `"E121"` for one without a name here
 */
export function errnoName(errno) {
  return NAMES.get(errno) ?? `E${errno}`;
}

/**
 * A call that was refused or that came to nothing.
 *
 * @property {number} errno  POSIX error number (1 is EPERM)
 * @property {string} name   its name, like `"EPERM"`
 * @property {string} text   what the service or the gateway said; a plain sentence when it said nothing
 * @property {string} topic  the topic of the call; `""` when the error is not about a call
 */
export class FluxError extends Error {
  /**
   * @param {number} errno
   * @param {string} [text]
   * @param {string} [topic]
   */
  constructor(errno, text = '', topic = '') {
    const name = errnoName(errno);
    const said = text || TEXTS[name] || name;
    super(topic ? `${topic}: ${said} (${name})` : `${said} (${name})`);
    this.errno = errno;
    this.name = name;
    this.text = said;
    this.topic = topic;
  }
}
