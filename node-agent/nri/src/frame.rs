//! Encodes and decodes the frames on the Unix socket.
//!
//! Two connections share the socket. Each piece has a header of eight bytes (connection and length) and belongs to a
//! byte stream. The stream contains messages, each with a header of ten bytes (length, call, kind, flags). A piece
//! may hold half a header or three messages.
//!
//! # Bounds
//!
//! A length above the protocol's limit is an error before any memory is reserved for it. So a peer can make this
//! side buffer at most one message for each connection. Outgoing messages are split into pieces of at most [`PIECE`]
//! bytes, because the runtime reads each piece into a buffer of that size.

/// The longest message, without its header.
pub const MESSAGE_MAX: usize = 4 << 20;
/// The header of a message.
const MESSAGE_HEADER: usize = 10;
/// The header of a piece.
const PIECE_HEADER: usize = 8;
/// The longest piece that is accepted.
const PIECE_MAX: usize = MESSAGE_HEADER + MESSAGE_MAX;
/// The longest piece that is sent.
pub const PIECE: usize = 4096;

/// One of the two connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MuxConnection {
    /// The runtime calls the plugin.
    Plugin,
    /// The plugin calls the runtime.
    Runtime,
}

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A call, which expects an answer.
    Request,
    /// The answer to a call.
    Response,
    /// Another kind, which is not used here.
    Other(u8),
}

/// A message of ttrpc with its header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TtrpcMessage {
    /// The number of the call; the caller's numbers are odd.
    pub stream: u32,
    /// Call or answer.
    pub kind: Kind,
    /// The encoded request or response of ttrpc.
    pub payload: Vec<u8>,
}

/// Received data exceeds the protocol's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A piece is too long.
    #[error("a piece of {0} bytes, at most {PIECE_MAX} are allowed")]
    Piece(usize),
    /// A message is too long.
    #[error("a message of {0} bytes, at most {MESSAGE_MAX} are allowed")]
    Message(usize),
}

/// Decodes the received bytes into frames, however they were cut.
#[derive(Debug, Default)]
pub struct FrameDecoder {
    socket: Vec<u8>,
    plugin: Vec<u8>,
    runtime: Vec<u8>,
}

impl FrameDecoder {
    /// Adds bytes from the socket and returns the messages that are now complete.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Vec<(MuxConnection, TtrpcMessage)>, FrameError> {
        self.socket.extend_from_slice(bytes);
        let mut messages = Vec::new();
        while let Some((lane, piece)) = take_piece(&mut self.socket)? {
            // Ignore connections that nobody has opened.
            let Some(lane) = lane else { continue };
            let stream = match lane {
                MuxConnection::Plugin => &mut self.plugin,
                MuxConnection::Runtime => &mut self.runtime,
            };
            stream.extend_from_slice(&piece);
            while let Some(message) = take_message(stream)? {
                messages.push((lane, message));
            }
        }
        Ok(messages)
    }
}

/// Encodes one message for one connection.
#[must_use]
pub fn encode(lane: MuxConnection, message: &TtrpcMessage) -> Vec<u8> {
    let mut whole = Vec::with_capacity(MESSAGE_HEADER + message.payload.len());
    whole.extend(length(message.payload.len()).to_be_bytes());
    whole.extend(message.stream.to_be_bytes());
    whole.push(match message.kind {
        Kind::Request => 1,
        Kind::Response => 2,
        Kind::Other(kind) => kind,
    });
    // No flags: calls and answers are single messages.
    whole.push(0);
    whole.extend(&message.payload);
    let number: u32 = match lane {
        MuxConnection::Plugin => 1,
        MuxConnection::Runtime => 2,
    };
    whole
        .chunks(PIECE)
        .flat_map(|piece: &[u8]| {
            let header = [number.to_be_bytes(), length(piece.len()).to_be_bytes()].concat();
            [header.as_slice(), piece].concat()
        })
        .collect()
}

fn length(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// A piece, and its connection if it is one of the two.
type Piece = (Option<MuxConnection>, Vec<u8>);

fn take_piece(socket: &mut Vec<u8>) -> Result<Option<Piece>, FrameError> {
    let (Some(number), Some(length)) = (number(socket, 0), number(socket, 4)) else {
        return Ok(None);
    };
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if length > PIECE_MAX {
        return Err(FrameError::Piece(length));
    }
    let Some(piece) = take(socket, PIECE_HEADER, length) else {
        return Ok(None);
    };
    let lane = match number {
        1 => Some(MuxConnection::Plugin),
        2 => Some(MuxConnection::Runtime),
        _ => None,
    };
    Ok(Some((lane, piece)))
}

fn take_message(stream: &mut Vec<u8>) -> Result<Option<TtrpcMessage>, FrameError> {
    let (Some(length), Some(call), Some(kind)) =
        (number(stream, 0), number(stream, 4), stream.get(8).copied())
    else {
        return Ok(None);
    };
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if length > MESSAGE_MAX {
        return Err(FrameError::Message(length));
    }
    let payload = take(stream, MESSAGE_HEADER, length);
    Ok(payload.map(|payload| TtrpcMessage {
        stream: call,
        kind: match kind {
            1 => Kind::Request,
            2 => Kind::Response,
            other => Kind::Other(other),
        },
        payload,
    }))
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    Some(u32::from_be_bytes(bytes.try_into().ok()?))
}

/// Removes a header and its content from the front. Returns the content.
fn take(bytes: &mut Vec<u8>, header: usize, length: usize) -> Option<Vec<u8>> {
    if bytes.len() < header + length {
        return None;
    }
    let rest = bytes.split_off(header + length);
    let mut whole = std::mem::replace(bytes, rest);
    Some(whole.split_off(header))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_reads_byte_for_byte_as_the_runtime_writes_it() {
        let message = TtrpcMessage {
            stream: 1,
            kind: Kind::Request,
            payload: vec![7, 8],
        };
        let bytes = [0, 0, 0, 2, 0, 0, 0, 12, 0, 0, 0, 2, 0, 0, 0, 1, 1, 0, 7, 8];
        assert_eq!(encode(MuxConnection::Runtime, &message), bytes);
        let read = FrameDecoder::default().feed(&bytes);
        assert_eq!(read, Ok(vec![(MuxConnection::Runtime, message)]));
    }

    #[test]
    fn nothing_is_kept_for_a_length_that_is_not_allowed() {
        let piece = [0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff];
        let error = FrameDecoder::default().feed(&piece);
        assert_eq!(error, Err(FrameError::Piece(0xffff_ffff)));
        let message = [0, 0, 0, 1, 0, 0, 0, 10, 0, 0x40, 0, 1, 0, 0, 0, 1, 1, 0];
        let error = FrameDecoder::default().feed(&message);
        assert_eq!(error, Err(FrameError::Message(MESSAGE_MAX + 1)));
    }
}
