"""Read and write btrfs and ext4 images without mounting them, as an ordinary user.

    import sapwood

    with sapwood.open("disk.img", writable=True) as image:
        print(image.read_text("/etc/os-release"))
        (image / "etc" / "hostname").write_text("box\\n")

``open`` gives an `Image`, ``Image / "name"`` a `Path` with the methods of `pathlib.Path`, and
`ImageBuilder` makes new images. Errors are `OSError`, with ``errno`` and ``filename``.
"""

from ._builder import ImageBuilder
from ._image import Image, open
from ._offline import CheckReport, Finding, Info, check, info, resize
from ._path import Path
from ._progress import Progress
from ._sapwood import VERSION as __version__
from ._streams import Difference, ExportReport

__all__ = [
    "CheckReport",
    "Difference",
    "ExportReport",
    "Finding",
    "Image",
    "ImageBuilder",
    "Info",
    "Path",
    "Progress",
    "__version__",
    "check",
    "info",
    "open",
    "resize",
]
