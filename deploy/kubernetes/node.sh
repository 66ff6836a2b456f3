#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A secret and an overlay for each node, so that no node can read another one's key: node.sh --help
set -eu
here=$(cd "$(dirname "$0")" && pwd -P)
mfl=${MFL:-mfl}

usage()
{
        cat <<'TEXT'
usage: node.sh [options] NODE... | kubectl apply -f -
       kubectl apply -k overlays/nodes

For each node: a certificate from `mfl pki`, if it has none yet; its Secret, on standard output; and a folder with a DaemonSet that
runs on this node alone. Again for the same nodes: after `mfl pki renew`, and to change what is below. Nodes that are not named
stay as they are; `rm -r overlays/nodes/daemons/NODE` and node.sh without nodes take one out.

  --gpus N          one daemon for each of N GPUs; 0 (default): one daemon on the CPU
  --cpus N          cores of a node that trains on the CPU (4), else what is asked for (2 a GPU)
  --memory SIZE     limit of memory (16Gi a GPU, or 32Gi)
  --pki DIR         the CA's directory (as mfl pki --dir)
  --ca-pass-file F  as mfl pki's
  --registry NAME   where the images are (registry.example.org)
  --tag TAG         of the images (latest)
  --drain           with components/drain
  --out DIR         the overlay (overlays/nodes beside this script)
TEXT
}

fail()
{
        echo "node.sh: $*" >&2
        exit 2
}

gpus=0 cpus='' memory='' registry=registry.example.org tag=latest drain='' pass='' nodes=''
pki=${XDG_CONFIG_HOME:-${HOME:-}/.config}/mfl/pki out=$here/overlays/nodes
while [ $# -gt 0 ]; do
        case $1 in
        -h | --help)
                usage
                exit 0
                ;;
        --drain) drain=1 ;;
        --gpus | --cpus | --memory | --pki | --ca-pass-file | --registry | --tag | --out)
                [ $# -gt 1 ] || fail "$1 needs a value"
                case $1 in
                --gpus) gpus=$2 ;;
                --cpus) cpus=$2 ;;
                --memory) memory=$2 ;;
                --pki) pki=$2 ;;
                --ca-pass-file) pass=$2 ;;
                --registry) registry=$2 ;;
                --tag) tag=$2 ;;
                --out) out=$2 ;;
                esac
                shift
                ;;
        -*) fail "no option $1; node.sh --help tells" ;;
        *)
                # A daemon's name has 63 characters, of which '-GPU-' and a number may be some.
                echo "$1" | grep -q -x -E '[a-z0-9]([a-z0-9.-]{0,50}[a-z0-9])?' ||
                        fail "$1: a node's name has 1 to 52 of a-z 0-9 . -, and a letter or digit at both ends"
                nodes="$nodes $1"
                ;;
        esac
        shift
done
for number in "$gpus" "${cpus:-1}"; do
        echo "$number" | grep -q -x -E '0|[1-9][0-9]{0,3}' || fail "$number: not a number"
done
if [ "$gpus" -gt 0 ]; then
        cpus=${cpus:-$((2 * gpus))} memory=${memory:-$((16 * gpus))Gi} image=mfl-client-cuda
else
        cpus=${cpus:-4} memory=${memory:-32Gi} image=mfl-client
fi
[ "$cpus" -gt 0 ] || fail "--cpus 0: a daemon needs one"
mkdir -p "$out/daemons"
out=$(cd "$out" && pwd -P)

# Prints where the files of a node lie. A name may stand for somebody else, too, whose key is not a daemon's.
certificate_of()
{
        valid=$("$mfl" pki show "$1" --dir "$pki" --json 2>/dev/null | tr '{' '\n' | grep '"state":"valid"' || true)
        case $valid in
        '') "$mfl" pki issue daemon "$1" --dir "$pki" ${pass:+--ca-pass-file "$pass"} >&2 ;;
        *'"roles":["daemon"]'*) ;;
        *) fail "$1 has a certificate that is not a daemon's: mfl pki show $1" ;;
        esac
        for file in ca.pem cert.pem key.pem; do
                [ -r "$pki/issued/$1/$file" ] || fail "$pki/issued/$1/$file is not there: was its key made elsewhere?"
        done
        echo "$pki/issued/$1"
}

in_base64()
{
        base64 -w 0 "$1"
}

print_secret()
{
        cat <<TEXT
---
apiVersion: v1
kind: Secret
metadata:
  name: mfl-client-tls-$1
  namespace: mfl
  labels: {app.kubernetes.io/part-of: mfl, mfl.node: $1}
type: Opaque
data:
  ca.pem: $(in_base64 "$2/ca.pem")
  $1.pem: $(in_base64 "$2/cert.pem")
  $1.key: $(in_base64 "$2/key.pem")
TEXT
}

# A node may call itself what it likes in its labels, but not by another node's name: so its name is what binds the pod.
write_patch()
{
        cat <<TEXT
# Made by node.sh.
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: mfl-client
spec:
  template:
    spec:
      affinity:
        nodeAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            nodeSelectorTerms:
              - matchFields:
                  - {key: metadata.name, operator: In, values: ["$1"]}
TEXT
        if [ "$gpus" -gt 0 ]; then
                cat <<TEXT
      tolerations:
        - {key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}
      containers:
        - name: mfl-client
          command: [mfl-client, --all-gpus]
          resources:
            requests: {cpu: "$cpus", memory: $memory}
            limits: {memory: $memory, nvidia.com/gpu: $gpus}
TEXT
        else
                cat <<TEXT
      containers:
        - name: mfl-client
          command: [mfl-client, --gpu=none, --workers=$cpus]
          resources:
            requests: {cpu: "$cpus"}
            limits: {memory: $memory}
TEXT
        fi
        cat <<TEXT
      volumes:
        - name: tls
          secret: {secretName: mfl-client-tls-$1}
TEXT
}

write_kustomization()
{
        cat <<TEXT
# Made by node.sh.
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [$(realpath --relative-to "$out/daemons/$1" "$here/client")]
nameSuffix: -$1
labels:
  - pairs: {mfl.node: "$1"}
    includeSelectors: true
images:
  - {name: mfl-client, newName: $registry/$image, newTag: "$tag"}
patches:
  - path: client.yaml
TEXT
        if [ -n "$drain" ]; then
                echo "components: [$(realpath --relative-to "$out/daemons/$1" "$here/components/drain")]"
        fi
}

for node in $nodes; do
        files=$(certificate_of "$node")
        print_secret "$node" "$files"
        mkdir -p "$out/daemons/$node"
        write_patch "$node" >"$out/daemons/$node/client.yaml"
        write_kustomization "$node" >"$out/daemons/$node/kustomization.yaml"
done

folders=$(cd "$out/daemons" && find . -mindepth 2 -maxdepth 2 -name kustomization.yaml |
        sed 's,^\./\(.*\)/.*,    - daemons/\1,' | sort)
[ -n "$folders" ] || fail "no nodes: node.sh --help tells"
cat >"$out/kustomization.yaml" <<TEXT
# Made by node.sh. For components and changes of your own make an overlay on top of it: resources: [../nodes].
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
    - $(realpath --relative-to "$out" "$here/base")
$folders
images:
    - {name: mfl-server, newName: $registry/mfl-server, newTag: "$tag"}
TEXT
