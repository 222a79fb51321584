//! Rewrites the `:authority` of requests on the Unix socket into one that our HTTP/2 server accepts.
//!
//! gRPC's C core, and so its Python library, uses the socket's path as `:authority`, for example `tmp%2Fagent.sock`.
//! That is no valid authority by RFC 3986, and the server ends the request with `PROTOCOL_ERROR` before our code
//! sees it. On a Unix socket the value means nothing. So this code parses the incoming bytes, frame by frame (RFC
//! 9113, section 4.1) and field by field (RFC 7541, section 6). In the value it replaces each byte that is no
//! letter, digit, dot, hyphen or underscore with a hyphen. No other byte and no length changes. What cannot be
//! parsed is left for the server to refuse. A Huffman-coded value is left as it is: the C core sends none.

/// The name of the field.
const NAME: &[u8] = b":authority";
/// Its index in HPACK's static table.
const INDEX: u64 = 1;
/// The length of the HTTP/2 connection preface.
const PREFACE: usize = 24;
/// The length of a frame header.
const HEAD: usize = 9;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const PADDED: u8 = 0x08;
const PRIORITY: u8 = 0x20;

/// The parser state of one connection.
#[derive(Debug)]
pub(super) struct AuthorityRewriter {
    preface: usize,
    head: [u8; HEAD],
    read: usize,
    /// How much of the frame's payload is left.
    left: usize,
    is_block: bool,
    /// Whether the payload begins with the padding length.
    is_padded: bool,
    /// How many bytes precede the fields.
    skip: usize,
    padding: usize,
    fields: HpackParser,
}

impl AuthorityRewriter {
    pub(super) fn new() -> Self {
        Self {
            preface: PREFACE,
            head: [0; HEAD],
            read: 0,
            left: 0,
            is_block: false,
            is_padded: false,
            skip: 0,
            padding: 0,
            fields: HpackParser::default(),
        }
    }

    /// Parses the bytes that arrived, and rewrites the value in them.
    pub(super) fn pass(&mut self, bytes: &mut [u8]) {
        bytes.iter_mut().for_each(|byte| self.step(byte));
    }

    fn step(&mut self, byte: &mut u8) {
        if self.preface > 0 {
            self.preface -= 1;
        } else if self.left == 0 {
            self.begin(*byte);
        } else {
            self.left -= 1;
            self.content(byte);
        }
    }

    fn begin(&mut self, byte: u8) {
        if let Some(place) = self.head.get_mut(self.read) {
            *place = byte;
        }
        self.read += 1;
        if self.read < HEAD {
            return;
        }
        self.read = 0;
        let [high, middle, low, kind, flags, ..] = self.head;
        let length = u32::from_be_bytes([0, high, middle, low]);
        self.left = usize::try_from(length).unwrap_or(usize::MAX);
        self.is_block = matches!(kind, HEADERS | CONTINUATION);
        let has = |flag| kind == HEADERS && flags & flag != 0;
        self.is_padded = has(PADDED);
        self.skip = if has(PRIORITY) { 5 } else { 0 };
        self.padding = 0;
        if kind == HEADERS {
            self.fields = HpackParser::default();
        }
    }

    fn content(&mut self, byte: &mut u8) {
        if !self.is_block {
            return;
        }
        if self.is_padded {
            self.is_padded = false;
            self.padding = usize::from(*byte);
        } else if self.skip > 0 {
            self.skip -= 1;
        } else if self.left >= self.padding {
            self.fields.step(byte);
        }
    }
}

/// A string of a field.
#[derive(Clone, Copy, Debug)]
enum HeaderPart {
    Name,
    Value,
}

/// What an HPACK integer means.
#[derive(Clone, Copy, Debug)]
enum HpackInteger {
    /// The index of a complete field, or a new table size.
    All,
    /// The index of a field's name, whose value follows. Zero if the name follows, too.
    Name,
    /// The length of a string.
    Length { part: HeaderPart, is_plain: bool },
}

/// The position within the fields.
#[derive(Clone, Copy, Debug, Default)]
enum HpackState {
    #[default]
    Start,
    Number {
        value: u64,
        shift: u32,
        says: HpackInteger,
    },
    Length(HeaderPart),
    Text {
        left: u64,
        part: HeaderPart,
        is_plain: bool,
    },
}

#[derive(Debug, Default)]
struct HpackParser {
    at: HpackState,
    is_authority: bool,
    /// How many bytes of the name match so far; `None` after a mismatch.
    matched: Option<usize>,
}

impl HpackParser {
    fn step(&mut self, byte: &mut u8) {
        match self.at {
            HpackState::Start => match *byte {
                0x80.. => self.number(*byte, 7, HpackInteger::All),
                0x40..0x80 => self.number(*byte, 6, HpackInteger::Name),
                0x20..0x40 => self.number(*byte, 5, HpackInteger::All),
                0..0x20 => self.number(*byte, 4, HpackInteger::Name),
            },
            HpackState::Number { value, shift, says } => {
                let more = u64::from(*byte & 0x7f).checked_shl(shift);
                let value = value.saturating_add(more.unwrap_or(u64::MAX));
                if *byte & 0x80 == 0 {
                    self.known(value, says);
                } else {
                    let shift = shift.saturating_add(7);
                    self.at = HpackState::Number { value, shift, says };
                }
            }
            HpackState::Length(part) => {
                let is_plain = *byte & 0x80 == 0;
                self.number(*byte, 7, HpackInteger::Length { part, is_plain });
            }
            HpackState::Text {
                left,
                part,
                is_plain,
            } => {
                self.text(byte, part, is_plain);
                let left = left - 1;
                if left == 0 {
                    self.end(part);
                } else {
                    self.at = HpackState::Text {
                        left,
                        part,
                        is_plain,
                    };
                }
            }
        }
    }

    /// Parses the first byte of an integer, which has it in its lowest bits.
    fn number(&mut self, byte: u8, bits: u32, says: HpackInteger) {
        let most = u8::MAX >> (8 - bits);
        let value = byte & most;
        if value == most {
            let value = u64::from(value);
            self.at = HpackState::Number {
                value,
                shift: 0,
                says,
            };
        } else {
            self.known(u64::from(value), says);
        }
    }

    fn known(&mut self, value: u64, says: HpackInteger) {
        match says {
            HpackInteger::All => self.at = HpackState::Start,
            HpackInteger::Name => {
                self.is_authority = value == INDEX;
                self.matched = Some(0);
                self.at = HpackState::Length(if value == 0 {
                    HeaderPart::Name
                } else {
                    HeaderPart::Value
                });
            }
            HpackInteger::Length { part, .. } if value == 0 => self.end(part),
            HpackInteger::Length { part, is_plain } => {
                let left = value;
                self.at = HpackState::Text {
                    left,
                    part,
                    is_plain,
                };
            }
        }
    }

    fn text(&mut self, byte: &mut u8, part: HeaderPart, is_plain: bool) {
        match part {
            HeaderPart::Name => {
                let next = self.matched.filter(|_| is_plain);
                self.matched = next
                    .filter(|at| NAME.get(*at) == Some(byte))
                    .map(|at| at + 1);
            }
            HeaderPart::Value => {
                let is_kept = byte.is_ascii_alphanumeric() || b".-_".contains(byte);
                if self.is_authority && is_plain && !is_kept {
                    *byte = b'-';
                }
            }
        }
    }

    fn end(&mut self, part: HeaderPart) {
        self.at = match part {
            HeaderPart::Name => {
                self.is_authority = self.matched == Some(NAME.len());
                HpackState::Length(HeaderPart::Value)
            }
            HeaderPart::Value => HpackState::Start,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, content: &[u8]) -> Vec<u8> {
        let length = u32::try_from(content.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 1], content].concat()
    }

    /// What gRPC's C core 58 sends: literal names, no Huffman coding.
    const FIELDS: &[u8] = b"@\x05:path\x18/apportion.v1.Agent/List@\n:authority\x10tmp%2Fcmd-t.sock\x83\x86@\x02te\x08trailers";
    const READABLE: &[u8] = b"@\x05:path\x18/apportion.v1.Agent/List@\n:authority\x10tmp-2Fcmd-t.sock\x83\x86@\x02te\x08trailers";

    fn passed(connection: &[u8], step: usize) -> Vec<u8> {
        let mut bytes = connection.to_vec();
        let mut authority = AuthorityRewriter::new();
        bytes.chunks_mut(step).for_each(|part| authority.pass(part));
        bytes
    }

    fn connection(fields: &[u8]) -> Vec<u8> {
        let half = fields.len() / 2;
        let padded = [&[3, 0, 0, 0, 0, 0], fields, &[b'%'; 3]].concat();
        [
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
            frame(4, 0, b"a%/b%c"),
            frame(HEADERS, 4, fields),
            frame(0, 1, b"@\n:authority\x03a%b"),
            frame(HEADERS, PADDED | PRIORITY, &padded),
            frame(HEADERS, 0, &fields[..half]),
            frame(CONTINUATION, 4, &fields[half..]),
        ]
        .concat()
    }

    #[test]
    fn the_path_of_a_socket_becomes_a_name_and_nothing_else_changes() {
        for step in [1, 2, 7, 1000] {
            let bytes = passed(&connection(FIELDS), step);
            assert_eq!(bytes, connection(READABLE), "in pieces of {step}");
        }
    }

    #[test]
    fn a_name_by_its_number_is_read_too_and_a_long_one() {
        let long = [b'/'; 300];
        let field = |value: &[u8]| [&[0x01, 0x7f, 0xad, 0x01], value].concat();
        let bytes = passed(&connection(&field(&long)), 5);
        assert_eq!(bytes, connection(&field(&[b'-'; 300])));
        let good = b"\x41\x09localhost\x82";
        assert_eq!(passed(&connection(good), 3), connection(good));
        let coded = b"\x41\x83%%%\x82";
        assert_eq!(passed(&connection(coded), 3), connection(coded));
    }

    #[test]
    fn random_bytes_do_no_harm() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        for _ in 0..200 {
            let mut bytes: Vec<u8> = (0..4096)
                .map(|_| {
                    state = state
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    state.to_be_bytes()[0]
                })
                .collect();
            AuthorityRewriter::new().pass(&mut bytes);
            let mut fields = HpackParser::default();
            bytes.iter_mut().for_each(|byte| fields.step(byte));
        }
    }
}
