//! Addresses of exports.

use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};

use crate::NbdError;
use crate::host;

/// The default port of the protocol.
const PORT: u16 = 10809;
/// Longest name of an export in bytes.
const MAX_EXPORT: usize = 4096;

/// Address of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    /// TCP: host and port.
    Tcp(String, u16),
    /// A Unix socket.
    Unix(PathBuf),
}

/// `nbd://HOST[:PORT]/EXPORT` or `nbd+unix:///EXPORT?socket=PATH`. Special characters are written
/// as `%` and two hexadecimal digits. The parameter `without-flush` consents to writes on a server
/// without flush.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NbdUri {
    pub(crate) address: Address,
    pub(crate) export: Vec<u8>,
    /// The user consents to writes that no flush makes durable.
    pub(crate) without_flush: bool,
}

/// The parameter by which a user consents to a server without flush.
const WITHOUT_FLUSH: &str = "without-flush";
/// The parameter with the path of the Unix socket.
const SOCKET: &str = "socket=";

impl NbdUri {
    /// Whether a text begins as an address does.
    #[must_use]
    pub(crate) fn is_one(text: &[u8]) -> bool {
        [&b"nbd://"[..], b"nbd+unix://", b"nbds://", b"nbds+unix://"]
            .iter()
            .any(|scheme| text.starts_with(scheme))
    }

    /// Reads an address.
    ///
    /// # Errors
    /// [`NbdError::Uri`].
    pub(crate) fn parse(text: &str) -> Result<Self, NbdError> {
        let found = if let Some(rest) = text.strip_prefix("nbd://") {
            tcp(rest)?
        } else if let Some(rest) = text.strip_prefix("nbd+unix://") {
            unix(rest)?
        } else if text.starts_with("nbds") {
            return Err(NbdError::Uri("TLS is not supported"));
        } else {
            return Err(NbdError::Uri("nbd:// or nbd+unix:// is missing"));
        };
        if found.export.len() > MAX_EXPORT {
            Err(NbdError::Uri("the name of the export is too long"))
        } else {
            Ok(found)
        }
    }

    /// The address with the absolute path of its Unix socket, which a process can use from any
    /// directory. An address without a socket, and a text that is none, stay as they are.
    ///
    /// # Errors
    /// The current directory cannot be read.
    pub(crate) fn absolute(text: &str) -> io::Result<String> {
        let address = Self::parse(text).map(|uri| uri.address);
        let (Ok(Address::Unix(socket)), Some((start, query))) = (address, text.split_once('?'))
        else {
            return Ok(text.to_owned());
        };
        if socket.is_absolute() {
            return Ok(text.to_owned());
        }
        let socket = format!("{SOCKET}{}", encode(&std::path::absolute(socket)?));
        let query = query.split('&').map(|one| {
            if one.starts_with(SOCKET) {
                socket.as_str()
            } else {
                one
            }
        });
        Ok(format!("{start}?{}", query.collect::<Vec<_>>().join("&")))
    }
}

fn tcp(rest: &str) -> Result<NbdUri, NbdError> {
    let (authority, export) = rest.split_once('/').unwrap_or((rest, ""));
    if authority.contains('@') {
        return Err(NbdError::Uri("a user is not supported"));
    }
    let (export, query) = export.split_once('?').unwrap_or((export, ""));
    if query
        .split('&')
        .any(|one| !one.is_empty() && one != WITHOUT_FLUSH)
    {
        return Err(NbdError::Uri("nbd:// has no parameter but without-flush"));
    }
    let wrong = NbdError::Uri("the port is no number");
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest
                .split_once(']')
                .ok_or(NbdError::Uri("] is missing after the host"))?;
            (host, port.strip_prefix(':'))
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    let port = match port {
        Some(port) => port.parse().map_err(|_| wrong)?,
        None => PORT,
    };
    if host.is_empty() {
        return Err(NbdError::Uri("the host is missing"));
    }
    Ok(NbdUri {
        address: Address::Tcp(host.to_owned(), port),
        export: decode(export)?,
        without_flush: query.contains(WITHOUT_FLUSH),
    })
}

fn unix(rest: &str) -> Result<NbdUri, NbdError> {
    let path = rest.strip_prefix('/');
    let path = path.ok_or(NbdError::Uri("nbd+unix:// needs a third /"))?;
    let (export, query) = path.split_once('?').unwrap_or((path, ""));
    let socket = query.split('&').find_map(|one| one.strip_prefix(SOCKET));
    let socket = socket
        .filter(|socket| !socket.is_empty())
        .ok_or(NbdError::Uri("?socket=PATH is missing"))?;
    Ok(NbdUri {
        address: Address::Unix(host::os_string(decode(socket)?).into()),
        export: decode(export)?,
        without_flush: query.split('&').any(|one| one == WITHOUT_FLUSH),
    })
}

/// A path as the value of a parameter.
fn encode(path: &Path) -> String {
    let mut out = String::new();
    for byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'/' | b'.' | b'-' | b'_' | b'~' => out.push(char::from(*byte)),
            byte if byte.is_ascii_alphanumeric() => out.push(char::from(*byte)),
            byte => {
                // Writing to a String cannot fail.
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    out
}

/// Replaces `%` and two hexadecimal digits by their byte.
fn decode(text: &str) -> Result<Vec<u8>, NbdError> {
    let mut bytes = text.bytes();
    let mut out = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let mut digit = || bytes.next().and_then(|byte| char::from(byte).to_digit(16));
        let (Some(high), Some(low)) = (digit(), digit()) else {
            return Err(NbdError::Uri("% is not followed by two hexadecimal digits"));
        };
        out.push((high * 16 + low) as u8);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        let tcp = |host: &str, port, export: &[u8]| NbdUri {
            address: Address::Tcp(host.to_owned(), port),
            export: export.to_vec(),
            without_flush: false,
        };
        let parse = |text: &str| NbdUri::parse(text).unwrap();
        assert_eq!(parse("nbd://box"), tcp("box", 10809, b""));
        assert_eq!(parse("nbd://box:7/a%3Ab/c"), tcp("box", 7, b"a:b/c"));
        assert_eq!(parse("nbd://[::1]:9/x"), tcp("::1", 9, b"x"));
        let unix = NbdUri {
            address: Address::Unix("/run/a b".into()),
            export: b"x".to_vec(),
            without_flush: false,
        };
        assert_eq!(parse("nbd+unix:///x?socket=/run/a%20b"), unix);
        assert!(parse("nbd+unix:///x?socket=/a&without-flush").without_flush);
        assert!(parse("nbd://box/x?without-flush").without_flush);
    }

    #[test]
    fn the_path_of_a_socket_becomes_absolute() {
        let here = std::env::current_dir().unwrap();
        for text in [
            "nbd+unix:///x?socket=a%20b%26c:d",
            "nbd+unix:///x?socket=./e",
        ] {
            let absolute = NbdUri::absolute(text).unwrap();
            let Address::Unix(relative) = NbdUri::parse(text).unwrap().address else {
                panic!("{text} has no socket");
            };
            let wanted = std::path::absolute(here.join(relative)).unwrap();
            let found = NbdUri::parse(&absolute).unwrap();
            assert_eq!(found.address, Address::Unix(wanted), "{absolute}");
            assert_eq!(NbdUri::absolute(&absolute).unwrap(), absolute);
        }
        let both = NbdUri::absolute("nbd+unix:///x?without-flush&socket=s").unwrap();
        assert!(NbdUri::parse(&both).unwrap().without_flush, "{both}");
        for same in [
            "nbd://box/x",
            "nbd+unix:///x?socket=/s",
            "nbd+unix:///x",
            "file",
        ] {
            assert_eq!(NbdUri::absolute(same).unwrap(), same);
        }
    }

    #[test]
    fn wrong_addresses_are_refused() {
        for text in [
            "nbd://",
            "nbd:///x",
            "nbd://h:x/",
            "nbd://[::1",
            "nbd://u@h/",
            "nbd://h/x?tls=1",
            "nbd+unix:///x",
            "nbd+unix://x?socket=/a",
            "nbd+unix:///x?socket=",
            "nbd://h/%4",
            "nbds://h/",
            "file",
        ] {
            assert!(
                matches!(NbdUri::parse(text), Err(NbdError::Uri(_))),
                "{text}"
            );
        }
    }
}
