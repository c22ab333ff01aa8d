package service

import (
	"fmt"
	"strconv"
	"time"
)

// MaxSlowStart is the greatest Options.SlowStart.
const MaxSlowStart = time.Hour

func slowStartOption() option {
	return option{
		key: "slow-start",
		set: func(o *Options, value string) error {
			d, ok := wholeSeconds(value, MaxSlowStart)
			if !ok {
				return fmt.Errorf("not a time with whole seconds from 1s to %dh, such as 30s; new endpoints have their whole "+
					"weight at once", int(MaxSlowStart.Hours()))
			}
			o.SlowStart = d
			return nil
		},
		get: func(o *Options) string {
			if o.SlowStart == 0 {
				return ""
			}
			return strconv.Itoa(int(o.SlowStart.Seconds())) + "s"
		},
	}
}
