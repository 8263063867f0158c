#!/bin/sh
# Replaces the Ray cluster that serves by a new one, while queries go on; --help says how.
set -eu

service=divgrpc-ray
# The cluster in the manifests.
first=divgrpc-ray
folder=$(dirname "$0")
timeout=900
pause=60
new=

show_help() {
    cat <<'HELP'
usage: upgrade.sh [--timeout SECONDS] [--pause SECONDS] NAME

Replaces the Ray cluster that serves by a new one, which is called NAME and made from the
manifests in server/deploy/kuberay. Change the image there first. The machines need room for
both clusters. Queries go on; builds and deletions are refused until the end.

  --timeout SECONDS  wait so long for pods to be ready or to end (default: 900)
  --pause SECONDS    let clients call a server so long after another one is there (default: 60)

If a step fails, the script stops. Run it with the same NAME again to go on.
HELP
}

fail() {
    echo "upgrade.sh: $1" >&2
    exit 1
}

# Let clients call the servers of a cluster.
select_cluster() {
    kubectl patch service "$service" --type merge \
        --patch "{\"spec\":{\"selector\":{\"ray.io/cluster\":\"$1\"}}}"
}

# Set the number of pods of a group of the new cluster, given its place and its name.
scale() {
    path=/spec/workerGroupSpecs/$1
    kubectl patch raycluster "$new" --type json --patch "[
        {\"op\": \"test\", \"path\": \"$path/groupName\", \"value\": \"$2\"},
        {\"op\": \"replace\", \"path\": \"$path/replicas\", \"value\": $3}]"
}

# Wait until the pod of a group of the new cluster is ready. The operator may not have made it yet,
# and then kubectl does not wait.
await_pod() {
    end=$(($(date +%s) + timeout))
    until reply=$(kubectl wait pod --for=condition=Ready --timeout=10s \
        --selector "ray.io/cluster=$new,ray.io/group=$1" 2>&1); do
        [ "$(date +%s)" -lt "$end" ] || fail "no pod of the group $1 is ready: $reply"
        sleep 1
    done
}

while [ $# -gt 0 ]; do
    case $1 in
        --help) show_help && exit ;;
        --timeout) timeout=${2:?SECONDS are missing} && shift ;;
        --pause) pause=${2:?SECONDS are missing} && shift ;;
        -*) fail "unknown option $1; see --help" ;;
        *) new=$1 ;;
    esac
    shift
done
case $new in
    '' | *[!a-z0-9-]*) fail "NAME must have lower-case letters, digits and hyphens; see --help" ;;
esac

state="nothing was changed"
trap '[ $? -eq 0 ] || echo "upgrade.sh: stopped: $state" >&2' EXIT

current=$(kubectl get service "$service" --output 'jsonpath={.spec.selector.ray\.io/cluster}')
# Before the first upgrade, the Service selects the servers of all clusters.
current=${current:-$first}
if [ "$current" = "$new" ]; then
    groups=$(kubectl get raycluster "$new" --output 'jsonpath={.spec.workerGroupSpecs[*].groupName}')
    case " $groups " in
        *' reader '*) ;;
        *) fail "$new serves already, and this script has not made it: give another NAME" ;;
    esac
else
    select_cluster "$current"
    state="clients call $current as before; kubectl delete raycluster $new removes the new one"
    manifest=$(kubectl kustomize "$folder")
    printf '%s\n' "$manifest" | sed "s/divgrpc-ray-next/$new/" | kubectl apply --filename -
    await_pod reader
    select_cluster "$new"
    echo "clients call $new; $current ends in $pause s"
    state="clients call $new, which is read-only; $current is there"
    sleep "$pause"
fi

state="clients call $new, which is read-only; old clusters may be there"
clusters=$(kubectl get rayclusters --selector app.kubernetes.io/name=divgrpc-ray \
    --output 'jsonpath={.items[*].metadata.name}')
for old in $clusters; do
    [ "$old" != "$new" ] || continue
    kubectl delete raycluster "$old" --timeout "${timeout}s"
    # Its server has the lock of the volume until it ends.
    kubectl wait pod --for=delete --selector "ray.io/cluster=$old" --timeout "${timeout}s"
done

state="clients call $new; the old cluster is gone, and $new may be read-only"
scale 0 router 1
await_pod router
echo "$new may write; its read-only server ends in $pause s"
sleep "$pause"
scale 2 reader 0
echo "$new serves"
