#!/usr/bin/env bash
#
# DevStack plugin: oslo.messaging over zmq://, with this node's proxy in place of RabbitMQ.
# DevStack sources this file with a mode ("stack", "unstack", "clean") and, for "stack", a phase. Settings: ./settings and
# ./override-defaults.

_HEADGATE_OSLO_XTRACE=$(set +o | grep xtrace)
set +o xtrace

# ---------------------------------------------------------------- what services are told

# Instead of DevStack's own of the same names: it asks them for each service's configuration.

function get_transport_url {
    local virtual_host=${1:-}
    echo "zmq://${virtual_host:+/$virtual_host}"
}

function get_notification_url {
    echo "${HEADGATE_OSLO_NOTIFICATION_URL:-$(get_transport_url)}"
}

function rpc_backend_add_vhost {
    return 0 # a virtual host is a part of the exchange's name: nothing is to be made
}

function iniset_rpc_backend {
    local package=$1
    local file=$2
    local section=${3:-DEFAULT}
    local virtual_host=${4:-}
    iniset "$file" "$section" transport_url "$(get_transport_url "$virtual_host")"
    iniset "$file" oslo_messaging_notifications transport_url "$(get_notification_url)"
    iniset "$file" oslo_messaging_zmq rpc_zmq_ipc_dir "$HEADGATE_OSLO_IPC_DIR"
    if [[ -n "$HEADGATE_OSLO_CURVE_CERT" ]]; then
        iniset "$file" oslo_messaging_zmq zmq_curve_cert "$HEADGATE_OSLO_CURVE_CERT"
    fi
}

# ---------------------------------------------------------------- the proxy

function _headgate_oslo_command {
    local words=("$(get_python_exec_prefix)/headgate" oslo proxy --quiet)
    local each
    words+=(--ipc-dir "$HEADGATE_OSLO_IPC_DIR" --host "$HEADGATE_OSLO_HOST")
    if [[ -n "$HEADGATE_OSLO_ADVERTISE" ]]; then
        words+=(--advertise "$HEADGATE_OSLO_ADVERTISE")
    fi
    if [[ -n "$HEADGATE_OSLO_CURVE_CERT" ]]; then
        words+=(--curve-cert "$HEADGATE_OSLO_CURVE_CERT")
    fi
    if [[ "$HEADGATE_OSLO_INSECURE" == "True" ]]; then
        words+=(--insecure)
    fi
    if [[ "$HEADGATE_OSLO_DIRECTORY" == "redis" ]]; then
        for each in $HEADGATE_OSLO_REDIS; do
            words+=(--redis "$each")
        done
    else
        for each in $HEADGATE_OSLO_DIRECTORIES; do
            words+=(--directory "$each")
        done
    fi
    echo "${words[@]}"
}

function install_headgate_oslo {
    local extras="cli,oslo" # the driver; `headgate oslo status`
    if [[ "$HEADGATE_OSLO_DIRECTORY" == "redis" ]]; then
        extras="cli,oslo,redis"
        if [[ "$HEADGATE_OSLO_REDIS" == *"//${SERVICE_HOST:-127.0.0.1}:"* ]]; then
            install_package redis-server
            restart_service redis-server
        fi
    fi
    pip_install "${HEADGATE_OSLO_PACKAGE}[${extras}]"
}

function configure_headgate_oslo {
    # below /run: gone after a restart of the machine, made again by stack.sh
    sudo install -d -m 0750 -o "$STACK_USER" "$HEADGATE_OSLO_IPC_DIR"
}

function start_headgate_oslo {
    run_process headgate-oslo "$(_headgate_oslo_command)"
    local patience=30
    until "$(get_python_exec_prefix)/headgate" oslo status --ipc-dir "$HEADGATE_OSLO_IPC_DIR" >/dev/null 2>&1; do
        patience=$((patience - 1))
        if [[ $patience -le 0 ]]; then
            die $LINENO "the node proxy of oslo.messaging does not answer in $HEADGATE_OSLO_IPC_DIR"
        fi
        sleep 1
    done
}

function stop_headgate_oslo {
    stop_process headgate-oslo
}

# ---------------------------------------------------------------- when

if is_service_enabled headgate-oslo; then
    if [[ "$1" == "stack" && "$2" == "pre-install" ]]; then
        if is_service_enabled rabbit; then
            die $LINENO "rabbit and headgate-oslo are both enabled, expected one of them"
        fi
    elif [[ "$1" == "stack" && "$2" == "install" ]]; then
        echo_summary "Installing the zmq:// driver of oslo.messaging"
        install_headgate_oslo
    elif [[ "$1" == "stack" && "$2" == "post-config" ]]; then
        echo_summary "Starting the node proxy of oslo.messaging"
        configure_headgate_oslo
        start_headgate_oslo
    elif [[ "$1" == "unstack" ]]; then
        stop_headgate_oslo
    elif [[ "$1" == "clean" ]]; then
        sudo rm -rf "$HEADGATE_OSLO_IPC_DIR"
    fi
fi

$_HEADGATE_OSLO_XTRACE
