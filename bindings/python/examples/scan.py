"""Reads the facts that a scanner of VM images looks for, without root.

Usage: scan.py IMAGE
"""

import stat
import sys

import sapwood


def scan(image):
    release = image.read_text("etc/os-release").splitlines()
    fields = dict(line.split("=", 1) for line in release if "=" in line)
    print("system:", fields.get("PRETTY_NAME", "unknown").strip('"'))

    status = image / "var/lib/dpkg/status"
    if status.exists():
        with status.open() as lines:
            print("packages:", sum(line.startswith("Package: ") for line in lines))

    for directory, _, names in image.walk():
        for name in names:
            found = (directory / name).lstat()
            if stat.S_ISREG(found.st_mode) and found.st_mode & (stat.S_ISUID | stat.S_ISGID):
                mode = stat.filemode(found.st_mode)
                print(f"set-id: {mode} {directory / name} (owner {found.st_uid})")


def main(arguments):
    if len(arguments) != 1:
        sys.exit(__doc__)
    with sapwood.open(arguments[0]) as image:
        scan(image)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except OSError as error:
        sys.exit(f"{sys.argv[0]}: {error}")
