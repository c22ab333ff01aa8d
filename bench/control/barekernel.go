package control

import (
	"context"
	"errors"
	"time"

	"nftproxy/bench/result"
	"nftproxy/test/lib/testnet"
)

// bareStarts is how often the bare kernel loads the first program.
const bareStarts = 5

// bare measures the bare kernel, with nftproxy's own program.
func (r *run) bare(ctx context.Context) error {
	r.doing(result.BareNetlink, "first program")
	a := &answers{run: r, who: result.BareNetlink}
	err := r.loadBare(ctx, a)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	a.missing([]string{result.FirstProgram}, err)
	return nil
}

func (r *run) loadBare(ctx context.Context, a *answers) error {
	p, err := r.world.program(ctx)
	if err != nil {
		return err
	}
	whole, err := encode(load(p))
	if err != nil {
		return err
	}
	var took []float64
	for range bareStarts {
		node, d, err := loadBare(whole)
		if err == nil {
			err = node.close()
		}
		if err != nil {
			return err
		}
		took = append(took, d.Seconds())
	}
	c := medianCell(r.cell(result.FirstProgram, result.BareNetlink, "s"), took, nil)
	c.Values["MB"] = float64(len(whole[0])) / 1e6
	a.answer(c)
	return nil
}

// bareNode is a network namespace with a socket for batches.
type bareNode struct {
	ns     *testnet.Namespace
	socket *bareSocket
}

// loadBare loads a whole program into a namespace of its own. took is the kernel's time.
func loadBare(whole encoded) (node bareNode, took time.Duration, err error) {
	if node.ns, err = testnet.New("bare"); err != nil {
		return node, 0, err
	}
	if node.socket, err = dialBare(node.ns.Fd(), len(whole[0])); err != nil {
		return node, 0, joinClose(err, node.ns.Close)
	}
	if took, err = node.socket.send(whole); err != nil {
		err = joinClose(err, node.close)
	}
	return node, took, err
}

func (n bareNode) close() error { return errors.Join(n.socket.close(), n.ns.Close()) }
