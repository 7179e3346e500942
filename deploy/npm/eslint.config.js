// For client.js and all scripts of the dashboard: what is likely a mistake, nothing about form.
import js from '@eslint/js';
import globals from 'globals';

export default [
  js.configs.recommended,
  { languageOptions: { ecmaVersion: 'latest', sourceType: 'module', globals: globals.browser } },
];
