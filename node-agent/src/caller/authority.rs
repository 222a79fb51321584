//! The name that a client on the Unix socket gives to the agent, made one that our HTTP/2 server reads.
//!
//! A request names whom it is for (`:authority`). gRPC's C core, and so its Python, takes the socket's path for that,
//! as `tmp%2Fagent.sock`. That is no authority by RFC 3986, and the server ends the request with `PROTOCOL_ERROR`
//! before anybody of us sees it. On a Unix socket the name means nothing. So what arrives is read along, frame by frame
//! (RFC 9113, section 4.1) and field by field (RFC 7541, section 6), and each byte of that name that is no letter,
//! digit, dot, hyphen or underscore becomes a hyphen. Nothing else changes, no length does, and what cannot be read is
//! left for the server to refuse. A name in Huffman's code is left as it is: the C core sends none.

/// The name of the field.
const NAME: &[u8] = b":authority";
/// Its number in the table that all sides know.
const INDEX: u64 = 1;
/// How long the text is with which a client begins.
const PREFACE: usize = 24;
/// How long the head of a frame is.
const HEAD: usize = 9;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const PADDED: u8 = 0x08;
const PRIORITY: u8 = 0x20;

/// What was read of one connection.
#[derive(Debug)]
pub(super) struct AuthorityRewriter {
    preface: usize,
    head: [u8; HEAD],
    read: usize,
    /// What is left of the frame's content.
    left: usize,
    is_block: bool,
    /// Whether the content begins with the length of its padding.
    is_padded: bool,
    /// How many bytes stand before the fields.
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

    /// Reads what arrived next, and changes the name in it.
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

/// Which text of a field.
#[derive(Clone, Copy, Debug)]
enum HeaderPart {
    Name,
    Value,
}

/// What a number says.
#[derive(Clone, Copy, Debug)]
enum HpackInteger {
    /// The whole field, or the size of the table.
    All,
    /// The name of a field whose value follows; zero if the name does, too.
    Name,
    /// The length of a text.
    Length { part: HeaderPart, is_plain: bool },
}

/// Where in the fields of a request it is.
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

/// The fields of a request.
#[derive(Debug, Default)]
struct HpackParser {
    at: HpackState,
    is_authority: bool,
    /// How much of the name so far is that of the field; none if it is another.
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

    /// The first byte of a number, in its lowest bits.
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
                let is_next = |at: &usize| NAME.get(*at) == Some(byte);
                self.matched = next.filter(is_next).map(|at| at + 1);
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

    /// A frame as it is sent.
    fn frame(kind: u8, flags: u8, content: &[u8]) -> Vec<u8> {
        let length = u32::try_from(content.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 1], content].concat()
    }

    /// What gRPC's C core 58 sends: names as text, nothing in Huffman's code.
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
