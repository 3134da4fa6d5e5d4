//! Which instruction set the kernels run on.

use crate::element::Element;
#[cfg(target_arch = "x86_64")]
use crate::kernel::{Avx2, Avx512};
use crate::kernel::{Portable, Scratch, State, Tile, accumulate};

/// An instruction set that this processor has.
#[derive(Clone, Copy)]
pub struct Isa(Set);

#[derive(Clone, Copy)]
enum Set {
    Portable(Portable),
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
}

impl Isa {
    /// The sets this processor has, the fastest first; the last is what every processor of the target has.
    pub fn available() -> Vec<Isa> {
        let mut sets = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            sets.extend(Avx512::detect().map(|avx512| Isa(Set::Avx512(avx512))));
            sets.extend(Avx2::detect().map(|avx2| Isa(Set::Avx2(avx2))));
        }
        sets.push(Isa(Set::Portable(Portable)));
        sets
    }

    /// The fastest set this processor has.
    pub fn detect() -> Isa {
        Isa::available()[0]
    }

    /// `"avx512"`, `"avx2"` or `"portable"`.
    pub fn name(self) -> &'static str {
        match self.0 {
            Set::Portable(_) => "portable",
            #[cfg(target_arch = "x86_64")]
            Set::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Set::Avx512(_) => "avx512",
        }
    }

    /// [`accumulate`] with these instructions.
    pub(crate) fn accumulate<E: Element>(
        self,
        tile: &Tile<'_, E>,
        scratch: &mut Scratch,
        state: &mut State,
    ) {
        match self.0 {
            Set::Portable(portable) => accumulate(portable, tile, scratch, state),
            // SAFETY: the value of this type is the proof that the processor has the instructions.
            #[cfg(target_arch = "x86_64")]
            Set::Avx2(avx2) => unsafe { accumulate_avx2(avx2, tile, scratch, state) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Set::Avx512(avx512) => unsafe { accumulate_avx512(avx512, tile, scratch, state) },
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn accumulate_avx2<E: Element>(
    avx2: Avx2,
    tile: &Tile<'_, E>,
    scratch: &mut Scratch,
    state: &mut State,
) {
    accumulate(avx2, tile, scratch, state);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
fn accumulate_avx512<E: Element>(
    avx512: Avx512,
    tile: &Tile<'_, E>,
    scratch: &mut Scratch,
    state: &mut State,
) {
    accumulate(avx512, tile, scratch, state);
}
