package main

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/pflag"
)

// flagError says in plain words what is wrong with a flag's value. The library's own
// error is that of the parsing function.
func flagError(err error) error {
	invalid := (*pflag.InvalidValueError)(nil)
	if !errors.As(err, &invalid) {
		return err
	}
	want := ""
	switch kind := invalid.GetFlag().Value.Type(); {
	case errors.Is(err, strconv.ErrRange):
		want = "too large a number"
	case kind == "int":
		want = "not a whole number"
	case kind == "uint16":
		want = "not a number of 0 to 65535"
	case kind == "float32":
		want = "not a number"
	case kind == "bool":
		want = "neither true nor false"
	case kind == "duration":
		want = "not a duration, such as 30s, 5m or 1h30m"
	case kind == "stringSlice":
		want = "not a list separated by commas: a quotation mark has no partner"
	default:
		want = "not a " + kind
	}
	return fmt.Errorf("--%s: %q is %s", invalid.GetFlag().Name, invalid.GetValue(), want)
}
