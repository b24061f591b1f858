# shellcheck shell=bash disable=SC2034 # used by the scripts that source it
# Paths and functions that the scripts of the virtual machine share.

# The Debian release of QEMU, the compiler and the tools, independent of this machine's release. The kernel is
# the newest kernel in its backports.
vm_release=trixie
vm_cache=${EVENKEEL_VM_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/evenkeel/vm}
# Raise this number with each change of the prepared files, so that no run uses files of an older script.
vm_recipe=1
# A symbolic link to the directory that was prepared last.
vm_current=$vm_cache/current

vm_say() { printf '%s\n' "$*" >&2; }
# vm_refuse CODE TEXT...: prints the reason, one line per TEXT, and ends.
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
