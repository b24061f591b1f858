# shellcheck shell=bash disable=SC2034 # used by those who source it
# What the scripts of the virtual machine share: where things are, and how they fail.

# The release whose QEMU, compiler and tools are used, whatever this machine runs; the kernel is the newest
# of its backports.
vm_release=trixie
vm_cache=${EVENKEEL_VM_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/evenkeel/vm}
# A change of what is prepared, or how, gets a new number, so that no run uses what an older script left.
vm_recipe=1
# A symbolic link to what was prepared last.
vm_current=$vm_cache/current

vm_say() { printf '%s\n' "$*" >&2; }
# vm_refuse CODE TEXT...: says why, one line per TEXT, and ends.
vm_refuse() {
  local code=$1
  shift
  printf 'vm: %s\n' "$@" >&2
  exit "$code"
}

# vm_program ROOT NAME ARGUMENT...: runs a program of the tools as this user. It takes the tools' own
# dynamic linker and libraries, because the machine's C library may be older than the program.
vm_program() {
  local root=$1 name=$2 libraries=$1/usr/lib/x86_64-linux-gnu
  shift 2
  "$libraries/ld-linux-x86-64.so.2" --argv0 "${name##*/}" --library-path "$libraries" "$root/usr/$name" "$@"
}
