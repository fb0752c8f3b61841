//! Measures requests through a mount whose engine does no work: create and close, lookup, rename,
//! remove, and fsyncs that wait.
//!
//! `roundtrips DIR [off|on]` mounts on `DIR` over `/dev/fuse` (`off`), over io_uring (`on`), or
//! over whichever the kernel offers. It needs root. It prints operations per second, for 1 and 8
//! callers.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use sapwood_fuse::{MountOptions, mount};
use sapwood_testing::MemoryFs;
use sapwood_vfs::FileSystem;

const FILES: usize = 4000;

type Step = (&'static str, fn(&Path, usize) -> std::io::Result<()>);

const STEPS: &[Step] = &[
    ("create", |dir, number| {
        std::fs::File::create(dir.join(format!("f{number}"))).map(drop)
    }),
    ("open-close", |dir, number| {
        std::fs::File::open(dir.join(format!("f{number}"))).map(drop)
    }),
    ("chmod", |dir, number| {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(dir.join(format!("f{number}")), mode)
    }),
    ("absent", |dir, _| {
        match std::fs::metadata(dir.join("none")) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            _ => Err(std::io::Error::other("it is there")),
        }
    }),
    ("write4k+fsync", |dir, number| {
        let mut file = std::fs::File::options()
            .write(true)
            .open(dir.join(format!("f{number}")))?;
        std::io::Write::write_all(&mut file, &[7; 4096])?;
        file.sync_all()
    }),
    ("rename", |dir, number| {
        std::fs::rename(
            dir.join(format!("f{number}")),
            dir.join(format!("g{number}")),
        )
    }),
    ("unlink", |dir, number| {
        std::fs::remove_file(dir.join(format!("g{number}")))
    }),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let Some(dir) = arguments.get(1) else {
        eprintln!("roundtrips DIR [off|on]");
        return ExitCode::FAILURE;
    };
    match run(Path::new(dir), arguments.get(2).map_or("auto", |word| word)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(dir: &Path, rings: &str) -> Result<(), Box<dyn std::error::Error>> {
    let options = MountOptions {
        io_uring: rings.parse().map_err(|()| "off, on or auto")?,
        ..MountOptions::default()
    };
    let fs: Arc<dyn FileSystem> = Arc::new(MemoryFs::new());
    let session = mount(fs, dir, &options)?;
    let result = measure(dir);
    session.unmount()?;
    result
}

fn measure(dir: &Path) -> Result<(), Box<dyn std::error::Error>> {
    for callers in [1_usize, 8] {
        let dirs: Vec<_> = (0..callers)
            .map(|n| dir.join(format!("{callers}-{n}")))
            .collect();
        for dir in &dirs {
            std::fs::create_dir(dir)?;
        }
        let each = FILES / callers;
        for (name, step) in STEPS {
            let begun = Instant::now();
            std::thread::scope(|scope| {
                let all: Vec<_> = dirs
                    .iter()
                    .map(|dir| scope.spawn(move || (0..each).try_for_each(|n| step(dir, n))))
                    .collect();
                all.into_iter().try_for_each(|one| {
                    one.join()
                        .unwrap_or_else(|_| Err(std::io::Error::other("panicked")))
                })
            })?;
            let seconds = begun.elapsed().as_secs_f64();
            println!("{callers} {name} {:.0}", (each * callers) as f64 / seconds);
        }
    }
    Ok(())
}
