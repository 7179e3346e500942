#!/bin/sh
# Programs of others that Headgate is tested against, each in an environment of its own: sh deploy/peers.sh FOLDER/.stamp-VERSION
# The stamp is made when all of it is there. Called by the Makefile, which has the versions; PY is the Python that makes them.
set -eu
stamp=$1 folder=${1%/*} version=${1##*/.stamp-}
root=$PWD

environment() {
    echo "installing $1 into $folder"
    rm -rf "$folder"
    "$PY" -m venv --without-pip "$folder"
}

install() {
    "$PY" "$root/deploy/install.py" --python "$folder/bin/python" "$@"
}

purelib() {
    "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
}

# npm's part of a folder; without npm, or a registry, its test is skipped and says so
npm_folder() {
    rm -rf "$folder"
    mkdir -p "$folder"
    cp -r "$@" "$folder"
    cd "$folder"
    npm ci --silent --ignore-scripts || {
        echo "no npm, or no registry: nothing is made in $folder"
        exit 0
    }
}

case $folder in
.venv-norfab) # it pins its requirements with ==, and forgets to ask for pydantic
    environment "NorFab $version"
    install "norfab==$version" 'pydantic>=2,<3'
    ;;
.venv-oslo) # as applications install it, with what its own functional suite needs
    environment "oslo.messaging $version"
    install "oslo.messaging==$version" \
        eventlet testtools fixtures testscenarios oslotest pifpaf requests oslo.service cotyledon \
        --editable '.[all,oslo,redis]'
    ;;
.venv-oslo-*) # an older one has everything else from .venv-oslo: pip would give it the very same versions
    environment "oslo.messaging $version"
    install --no-deps "oslo.messaging==$version"
    echo "import site; site.addsitedir('$(purelib .venv-oslo)')" >"$(purelib "$folder")/beside.pth"
    ;;
.venv-ironic) # a service of OpenStack; where a registry does not have it, its test is skipped and says so
    environment "Ironic $version"
    "$PY" -m pip --disable-pip-version-check --python "$folder/bin/python" download --quiet --no-deps --dest "$folder/wheel" "ironic==$version" || {
        echo "no Ironic $version in this registry: its test is skipped"
        exit 0
    }
    install --constraint tests/live/ironic.lock "$folder"/wheel/* --editable '.[oslo]'
    ;;
build/npm) # client.js as the package that npm installs, with types made of its comments; all scripts of the page are checked
    npm_folder deploy/npm/. gateway/dashboard/client.js gateway/dashboard/client LICENSE
    echo "building the npm package of client.js in $folder"
    npm run --silent types
    npm pack --silent
    cd "$root"
    "$folder/node_modules/.bin/tsc" --project "$folder/dashboard.json"
    "$folder/node_modules/.bin/eslint" --config "$folder/eslint.config.js" gateway/dashboard
    ;;
.node/oidc) # a certified identity provider for the login of browsers
    npm_folder tests/interop/oidc/package.json tests/interop/oidc/package-lock.json
    ;;
*)
    echo "peers: what is $folder?" >&2
    exit 2
    ;;
esac
cd "$root"
touch "$stamp"
