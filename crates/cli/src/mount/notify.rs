//! Reports the daemon's state to a service manager: `sd_notify(3)`, datagrams to `$NOTIFY_SOCKET`.

use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

const VARIABLE: &str = "NOTIFY_SOCKET";

/// A connection to the service manager; none if there is no service manager that waits.
#[derive(Debug, Default)]
pub(super) struct Notifier(Option<UnixDatagram>);

impl Notifier {
    /// Connects to the socket that the environment names, before the process is confined.
    pub(super) fn from_environment() -> Self {
        let Some(name) = std::env::var_os(VARIABLE).filter(|name| !name.is_empty()) else {
            return Self(None);
        };
        let socket = Self::connect(name.as_bytes());
        let socket = socket.inspect_err(|error| log::warn!("{VARIABLE}: {error}"));
        Self(socket.ok())
    }

    /// Connects to a path, or to an abstract name that begins with `@`.
    fn connect(name: &[u8]) -> std::io::Result<UnixDatagram> {
        let address = match name.strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(name))?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address)?;
        Ok(socket)
    }

    /// The mount is up.
    pub(super) fn ready(&self) {
        self.send("READY=1\nSTATUS=Mounted");
    }

    /// A signal ends the daemon.
    pub(super) fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=Writing everything to the image");
    }

    fn send(&self, state: &str) {
        let sent = self.0.as_ref().map(|socket| socket.send(state.as_bytes()));
        match sent {
            Some(Err(error)) if error.kind() != ErrorKind::ConnectionRefused => {
                log::warn!("{VARIABLE}: {error}");
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_reach_a_path_and_an_abstract_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let name = format!("sapwood-notify-{}", std::process::id());
        let at_path = UnixDatagram::bind(&path).unwrap();
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let at_name = UnixDatagram::bind_addr(&address).unwrap();
        for (server, name) in [
            (&at_path, path.as_os_str().as_bytes().to_vec()),
            (&at_name, format!("@{name}").into_bytes()),
        ] {
            let notifier = Notifier(Some(Notifier::connect(&name).unwrap()));
            notifier.ready();
            let mut state = [0; 100];
            let len = server.recv(&mut state).unwrap();
            assert!(state[..len].starts_with(b"READY=1\n"));
        }
        Notifier(None).ready();
        assert!(Notifier::connect(b"/nonexistent/notify").is_err());
    }
}
