// Package smoke tries a real cluster: whether Services work as users and
// operators see them, while pods, nodes and the proxy itself come and go.
//
// Each test works in a namespace of its own, which it deletes.
package smoke

import (
	"context"
	"io"

	"nftproxy/test/realcluster/bringup"
)

// Run runs all tests in turn and writes a line for each. The error says how many
// failed.
func Run(ctx context.Context, c *bringup.Cluster, out io.Writer) error { return nil }
