#!/usr/bin/env bash
# Sees to it that LLVM 22's command-line tools are there: the assembly tests compare the instruction
# table with llvm-mc and llc, and `zyfa check` reads code objects with llvm-objdump.
# clang makes the kernel in HIP C++. The rest of the package compiles and assembles with the LLVM
# inside Triton.
set -euo pipefail
version=22
packages="llvm-$version lld-$version clang-$version"

# Found as the tests look for it: NAME-22 on PATH, or NAME in the folder ZYFA_LLVM, or on PATH.
has() {
  command -v "$1-$version" >/dev/null 2>&1 && return
  local path="${ZYFA_LLVM:+$ZYFA_LLVM/}$1"
  "$path" --version 2>/dev/null | grep -qE "(LLVM|clang) version $version\.|LLD $version\."
}
missing() {
  for tool in llvm-mc llc llvm-objdump ld.lld clang; do has "$tool" || echo "$tool"; done
}

lacking=$(missing)
[ -z "$lacking" ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
  echo "installing $packages"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $packages >/dev/null
  lacking=$(missing)
  [ -z "$lacking" ] && exit 0
fi
echo "error: LLVM $version's tools not found:" $lacking >&2
echo "       install them (Debian, Ubuntu: $packages), or name their folder in ZYFA_LLVM" >&2
exit 2
