#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Stands in for QEMU in the tests of guest.rs: behaves as the guest's command line says (fake=).

for arg; do
	case $arg in
	file,id=console,path=*) log=$(printf '%s' "${arg#*path=}" | sed 's/,,/\n/g; s/,.*//; s/\n/,/g') ;;
	*fake=*) case=${arg##*fake=} ;;
	esac
done

hello() {
	printf '{"event":"hello","release":"7.3.4","cpus":%s,"llcs":["0-1"],"cores":2,"threads":1,"features":""}\n' "$1"
}

# Long enough to be taken for a hang, not so long that a broken test never ends.
chat() {
	i=0
	while [ $((i += 1)) -lt 50 ] && sleep 0.2; do
		echo "$1" >>"$log"
	done
}

echo booting >>"$log"
echo $$ >"$(dirname "$log")/pid"
case $case in
good) hello 2 && echo '{"event":"alive"}' && echo '{"event":"done"}' ;;
garbage) hello 2 && printf '\001\002garbage\n' && exec sleep 60 ;;
hang) hello 2 && exec sleep 60 ;;
chatty) hello 2 && chat 'rcu: INFO: stall' ;;
printing) chat 'still booting' ;;
panic) hello 2 && echo '[ 1.0] Kernel panic - not syncing: Attempted to kill init!' >>"$log" ;;
early) hello 2 ;;
noport) echo 'sched-ab-agent: cannot open /dev/ttyS1' >>"$log" ;;
failed) echo 'no such machine' >&2 && exit 1 ;;
error) hello 2 && echo '{"event":"error","message":"no feature X"}' && exec sleep 60 ;;
cpus) hello 1 && exec sleep 60 ;;
kvm) echo 'KVM internal error. Suberror: 1' >&2 && exec sleep 60 ;;
esac
