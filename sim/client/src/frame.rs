//! One frame: four bytes of length, little-endian, then JSON.

use std::io::{self, Read, Write};

/// The most bytes of a request or reply.
const LONGEST: u32 = 16 << 20;

/// Sends one message.
///
/// # Errors
/// If the peer does not accept it.
pub fn send(stream: &mut impl Write, message: &impl serde::Serialize) -> io::Result<()> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, message)?;
    let length = u32::try_from(frame.len() - 4).map_err(io::Error::other)?;
    frame[..4].copy_from_slice(&length.to_le_bytes());
    stream.write_all(&frame)
}

/// Receives one message, or `None` if the peer closed the connection between messages.
///
/// # Errors
/// If the peer closes within a message, or sends an invalid one.
pub fn receive<T: serde::de::DeserializeOwned>(stream: &mut impl Read) -> io::Result<Option<T>> {
    let mut head = [0; 4];
    match stream.read_exact(&mut head) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let length = u32::from_le_bytes(head);
    if length > LONGEST {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "a frame is too long",
        ));
    }
    let mut body = vec![0; length as usize];
    stream.read_exact(&mut body)?;
    Ok(Some(serde_json::from_slice(&body)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_is_received() {
        let mut wire = Vec::new();
        send(&mut wire, &(7, "seven")).expect("a vector takes everything");
        let received: Option<(u32, String)> = receive(&mut wire.as_slice()).expect("a frame");
        assert_eq!(received, Some((7, "seven".to_owned())));
    }

    #[test]
    fn a_closed_stream_is_not_an_error_but_half_a_frame_is() {
        let none: Option<u32> = receive(&mut [].as_slice()).expect("nothing came");
        assert_eq!(none, None);
        assert!(receive::<u32>(&mut [9, 0, 0, 0, 1].as_slice()).is_err());
        assert!(receive::<u32>(&mut [0xff; 4].as_slice()).is_err());
    }
}
