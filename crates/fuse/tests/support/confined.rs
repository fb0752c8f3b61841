//! A process that confines itself as a daemon does, and then tries to reach something.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use sapwood_fuse::sandbox::{self, Needs};

/// The targets of the attacker, made before the process is confined.
struct Targets {
    dir: PathBuf,
    open: File,
    port: u16,
    path: PathBuf,
    abstract_name: SocketAddr,
    _servers: (TcpListener, UnixListener, UnixDatagram),
}

impl Targets {
    fn new() -> io::Result<Self> {
        // Below the working directory: its files belong to the user that attacks.
        let dir = PathBuf::from(std::env::var_os("SAPWOOD_FUSE_TEST_DIR").unwrap_or_default());
        let tcp = TcpListener::bind("127.0.0.1:0")?;
        let port = tcp.local_addr()?.port();
        let sockets = std::env::temp_dir();
        let path = sockets.join(format!("sapwood-confined-{}", std::process::id()));
        let unix = UnixListener::bind(&path)?;
        let name = format!("sapwood-confined-{}", std::process::id());
        let abstract_name = SocketAddr::from_abstract_name(name)?;
        let datagrams = UnixDatagram::bind_addr(&abstract_name)?;
        Ok(Self {
            open: File::open(dir.join("there"))?,
            dir,
            port,
            path,
            abstract_name,
            _servers: (tcp, unix, datagrams),
        })
    }
}

fn confine(needs: Needs) -> Result<(), ExitCode> {
    sandbox::confine(needs, true).map(|_| ()).map_err(|error| {
        eprintln!("{error}");
        ExitCode::from(3)
    })
}

/// Prints forbidden actions that succeeded, and allowed ones that failed.
pub(crate) fn attack() -> ExitCode {
    let targets = match Targets::new() {
        Ok(targets) => targets,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(4);
        }
    };
    // The name of a socket is not part of the attack.
    let socket = targets.path.clone();
    if let Err(code) = confine(Needs::default()) {
        return code;
    }
    for (what, reached) in attempts(&targets) {
        if reached {
            println!("{what}");
        }
    }
    // A thread is confined like the process.
    let other = std::thread::spawn(move || File::open("/etc/passwd").is_ok());
    if other.join().unwrap_or(true) {
        println!("a thread opened a file");
    }
    drop(socket);
    ExitCode::SUCCESS
}

/// The attempts, and whether each went wrong: an attack that succeeded, or an allowed action that
/// failed.
fn attempts(targets: &Targets) -> Vec<(&'static str, bool)> {
    let dir = &targets.dir;
    let denied = |result: io::Result<()>| {
        result.map_err(|error| error.kind()) != Err(ErrorKind::PermissionDenied)
    };
    let opens = |path: &str| denied(File::open(path).map(drop));
    let mut content = String::new();
    let read = (&targets.open).read_to_string(&mut content);
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let has = |line: &str| status.lines().any(|found| found == line);
    let mut all = vec![
        (
            "an open file is lost",
            read.is_err() || content != "content",
        ),
        ("no_new_privs", !has("NoNewPrivs:\t1")),
        ("no filter", !has("Seccomp:\t2")),
        ("capabilities", !has("CapEff:\t0000000000000000")),
        ("permitted capabilities", !has("CapPrm:\t0000000000000000")),
        ("opened a file", opens("/etc/passwd")),
        ("opened the program", opens("/proc/self/exe")),
        ("opened through a link", opens("/proc/self/root/etc/passwd")),
        (
            "read the environment of init",
            fs::read("/proc/1/environ").is_ok(),
        ),
        ("opened a directory", denied(File::open(dir).map(drop))),
        (
            "opened what it had",
            denied(File::open(dir.join("there")).map(drop)),
        ),
        (
            "created a file",
            denied(File::create(dir.join("new")).map(drop)),
        ),
        ("removed a file", denied(fs::remove_file(dir.join("there")))),
        (
            "renamed a file",
            denied(fs::rename(dir.join("there"), dir.join("new"))),
        ),
        ("made a directory", denied(fs::create_dir(dir.join("new")))),
        ("wrote to the kernel", {
            let file = File::options().write(true).open("/proc/self/oom_score_adj");
            denied(file.map(drop))
        }),
        (
            "started a program",
            denied(Command::new("true").spawn().map(drop)),
        ),
    ];
    all.extend(connections(targets));
    all
}

fn connections(targets: &Targets) -> Vec<(&'static str, bool)> {
    let abstract_socket = || {
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&targets.abstract_name)
    };
    let (ours, theirs) = match UnixStream::pair() {
        Ok(pair) => pair,
        Err(_) => return vec![("no pair of sockets", true)],
    };
    let passed = (&ours)
        .write_all(b"x")
        .and_then(|()| (&theirs).read_exact(&mut [0]));
    let init = rustix::process::Pid::INIT;
    vec![
        (
            "connected by TCP",
            TcpStream::connect(("127.0.0.1", targets.port)).is_ok(),
        ),
        ("listened by TCP", TcpListener::bind("127.0.0.1:0").is_ok()),
        (
            "opened a UDP socket",
            UdpSocket::bind("127.0.0.1:0").is_ok(),
        ),
        (
            "connected to a Unix socket",
            UnixStream::connect(&targets.path).is_ok(),
        ),
        ("connected to an abstract socket", abstract_socket().is_ok()),
        ("a pair of sockets is of no use", passed.is_err()),
        (
            "sent a signal",
            rustix::process::test_kill_process(init).is_ok(),
        ),
        ("set up a ring", io_uring::IoUring::new(2).is_ok()),
    ]
}

/// Is killed by its attempt to execute a program.
pub(crate) fn execute() -> ExitCode {
    if let Err(code) = confine(Needs::default()) {
        return code;
    }
    let error = Command::new("/bin/true").exec();
    println!("{error}");
    ExitCode::SUCCESS
}

/// Prints why a process with a second thread is not confined.
pub(crate) fn with_a_thread() -> ExitCode {
    let (end, wait) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || wait.recv());
    if let Err(error) = sandbox::confine(Needs::default(), true) {
        println!("{error}");
    }
    drop(end);
    let _ = thread.join();
    ExitCode::SUCCESS
}
