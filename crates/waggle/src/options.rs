//! Options with defaults, and a method for each that sets it.

/// Defines a struct of options. A field reads `name: type as (what the setter takes) = default`.
macro_rules! options {
    (
        $(#[$about:meta])*
        $name:ident { $($(#[$doc:meta])* $field:ident: $kind:ty $(as $taken:ty)? = $default:expr,)* }
    ) => {
        $(#[$about])*
        #[derive(Clone, Debug)]
        pub struct $name { $($(#[$doc])* pub $field: $kind,)* }

        impl Default for $name {
            fn default() -> Self {
                $name { $($field: $default,)* }
            }
        }

        impl $name {
            $($crate::options::setter!($(#[$doc])* $field: $kind $(as $taken)?);)*
        }
    };
}

/// Defines the method that sets one option.
macro_rules! setter {
    ($(#[$doc:meta])* $field:ident: $kind:ty) => {
        $(#[$doc])*
        #[must_use]
        pub fn $field(mut self, $field: $kind) -> Self {
            self.$field = $field;
            self
        }
    };
    ($(#[$doc:meta])* $field:ident: $kind:ty as $taken:ty) => {
        $(#[$doc])*
        #[must_use]
        pub fn $field(mut self, $field: $taken) -> Self {
            self.$field = $field.into();
            self
        }
    };
}

pub(crate) use {options, setter};
