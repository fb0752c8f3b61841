"""Puts files of this machine into a directory of an image, owned by root.

Usage: inject.py IMAGE FILE... DIRECTORY
"""

import os
import sys

import sapwood


def main(arguments):
    if len(arguments) < 3:
        sys.exit(__doc__)
    path, *files, directory = arguments
    with sapwood.open(path, writable=True, owner=(0, 0)) as image:
        target = image / directory
        target.mkdir(parents=True, exist_ok=True)
        for file in files:
            image.copy_in(file, target / os.path.basename(file), owner=(0, 0), permissions=0o755)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except OSError as error:
        sys.exit(f"{sys.argv[0]}: {error}")
