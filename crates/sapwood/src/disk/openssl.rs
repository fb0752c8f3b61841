//! Signatures by the program `openssl`, which reads keys with a passphrase and keys in hardware, too.

use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use super::{DiskError, Result};

/// Makes a detached PKCS#7 signature of a text, in DER. `key` and `certificate` are PEM files.
///
/// # Errors
/// [`DiskError::OpenSsl`]: the program is missing, or refuses a file.
pub(super) fn sign(text: &str, key: &Path, certificate: &Path) -> Result<Vec<u8>> {
    let mut command = Command::new("openssl");
    command.args(["smime", "-sign", "-binary", "-noattr", "-outform", "der"]);
    command.arg("-signer").arg(certificate);
    command.arg("-inkey").arg(key);
    run(command, text)
}

/// Verifies such a signature by this very certificate, as systemd does: the certificate needs no
/// issuer.
///
/// # Errors
/// [`DiskError::OpenSsl`]: the program is missing, refuses a file, or the signature is by another
/// key or of another text.
pub(super) fn verify(text: &str, signature: &[u8], certificate: &Path) -> Result<()> {
    let failed = |error: std::io::Error| DiskError::OpenSsl(error.to_string());
    let mut file = tempfile::NamedTempFile::new().map_err(failed)?;
    file.write_all(signature).map_err(failed)?;
    let mut command = Command::new("openssl");
    command.args(["smime", "-verify", "-binary", "-inform", "der"]);
    command.args(["-nointern", "-noverify", "-content", "/dev/stdin", "-in"]);
    command.arg(file.path()).arg("-certfile").arg(certificate);
    run(command, text).map(drop)
}

/// Runs `openssl` with this input. Returns its output.
fn run(mut command: Command, input: &str) -> Result<Vec<u8>> {
    let failed = |error: std::io::Error| {
        DiskError::OpenSsl(match error.kind() {
            ErrorKind::NotFound => "the program is not installed".to_owned(),
            _ => error.to_string(),
        })
    };
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that ends early says why.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(failed)?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = text.lines().map(reason).collect();
    Err(DiskError::OpenSsl(lines.join(", ")))
}

/// The reason in a line of an error queue (`THREAD:error:CODE:LIBRARY:FUNCTION:REASON:...`); other
/// lines are texts.
fn reason(line: &str) -> &str {
    let mut fields = line.split(':').skip(1);
    let queued = fields.next() == Some("error");
    fields.nth(3).filter(|_| queued).unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use super::reason;

    #[test]
    fn lines_of_an_error_queue_become_reasons() {
        let line = "80:error:10800080:PKCS7 routines:PKCS7_get0_signers:no certificate:a.c:425:";
        assert_eq!(reason(line), "no certificate");
        for text in ["Verification failure", "a:error:b", "1:2:3:4:5:6:7"] {
            assert_eq!(reason(text), text);
        }
    }
}
