"""Makes a reproducible image from a directory, with a progress line. All files belong to root.

Usage: build.py FORMAT DIRECTORY IMAGE
"""

import sys

import sapwood


def show(step):
    if sys.stderr.isatty():
        print(f"\r{step.phase}: {step.done} of {step.total}", end="", file=sys.stderr)


def main(arguments):
    if len(arguments) != 3:
        sys.exit(__doc__)
    kind, directory, path = arguments
    builder = sapwood.ImageBuilder(kind, reproducible=True, all_root=True)
    size = builder.add_tree(directory).build(path, free="64M", progress=show)
    print(f"{path}: {size} bytes, UUID {sapwood.info(path).uuid}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (OSError, ValueError) as error:
        sys.exit(f"{sys.argv[0]}: {error}")
