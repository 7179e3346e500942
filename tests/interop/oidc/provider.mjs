/**
 * The certified `oidc-provider` of npm, with people and groups of its own, for the login of browsers.
 *
 *     node provider.mjs NODE_MODULES '{"people": {NAME: {"groups": [...]}}, "redirects": [...], "secret": "..."}'
 *
 * Prints its issuer as the first line. Its own pages ask for a name, and take any password. It is called localhost, so
 * that it is another site than a gateway at 127.0.0.1.
 * @module
 */

import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

const [modules, given] = process.argv.slice(2);
const { people, redirects, secret } = JSON.parse(given);
const found = createRequire(pathToFileURL(join(modules, 'provider.mjs'))).resolve('oidc-provider');
const { Provider } = await import(pathToFileURL(found));

const client = (name, more) => ({ client_id: name, redirect_uris: redirects, scope: 'openid profile groups', ...more });
const configuration = {
  clients: [
    client('headgate', { client_secret: secret }),
    client('headgate-public', { token_endpoint_auth_method: 'none' }),
  ],
  claims: { openid: ['sub'], profile: ['name'], groups: ['groups'] },
  findAccount: (_context, id) => people[id] && { accountId: id, claims: () => ({ sub: id, name: id, ...people[id] }) },
  cookies: { keys: ['a key of tests'] },
  features: { devInteractions: { enabled: true }, rpInitiatedLogout: { enabled: false } },
};

const server = createServer();
server.listen(0, 'localhost', () => {
  const issuer = `http://localhost:${server.address().port}`;
  server.on('request', new Provider(issuer, configuration).callback());
  console.log(issuer);
});
