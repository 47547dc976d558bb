#!/usr/bin/env bash
# Sees to it that LLVM 22's command-line tools are there: the assembly tests compare the instruction
# table with llvm-mc and llc, and `zyfa check` reads foreign code objects with llvm-objdump.
# The package itself compiles and assembles with the LLVM inside Triton.
set -euo pipefail
version=22
missing=()
for tool in llvm-mc llc llvm-objdump ld.lld; do
  command -v "$tool-$version" >/dev/null 2>&1 || missing+=("$tool-$version")
done
[ ${#missing[@]} -eq 0 ] && exit 0

packages="llvm-$version lld-$version"
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
  echo "installing $packages (missing: ${missing[*]})"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $packages >/dev/null
  exit 0
fi
echo "error: not found: ${missing[*]}" >&2
echo "       install them (Debian, Ubuntu: apt-get install $packages) or put an LLVM $version on PATH" >&2
exit 2
