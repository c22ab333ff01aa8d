package main

import (
	"bytes"
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestWait: the command ends with its context, as by SIGTERM, and not before.
func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const until = time.Hour
		ctx, cancel := context.WithTimeout(t.Context(), until)
		defer cancel()
		began := time.Now()
		var out bytes.Buffer
		if code := execute(ctx, []string{"wait"}, &out, &out); code != 0 || out.Len() > 0 || time.Since(began) != until {
			t.Errorf("wait ends after %v with %d and says %q; want %v, 0 and nothing", time.Since(began), code, out.String(), until)
		}
	})
}
