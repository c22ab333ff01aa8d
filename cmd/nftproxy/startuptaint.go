package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"nftproxy/watch"
)

const startupTaintFlag = ownPrefix + "startup-taint"

// checkStartupTaint checks the key of a taint; empty stands for none.
func (o *runOptions) checkStartupTaint() error {
	if o.startupTaint == "" {
		return nil
	}
	if o.manifests != "" {
		return errors.New("--" + startupTaintFlag + ": there is no Node to change with --" + ownPrefix + "manifests")
	}
	if problems := validation.IsQualifiedName(o.startupTaint); len(problems) > 0 {
		return fmt.Errorf("--%s: %q is not the key of a taint: %s", startupTaintFlag, o.startupTaint, strings.Join(problems, "; "))
	}
	return nil
}

// removeStartupTaint removes the taint with which the kubelet registers the node, once
// ready is closed, until the context ends. Pods are then scheduled to the node.
func (d *daemon) removeStartupTaint(ctx context.Context, api api, ready <-chan struct{}) {
	key := d.options.startupTaint
	if key == "" {
		return
	}
	select {
	case <-ctx.Done():
		return
	case <-ready:
	}
	last := ""
	watch.RemoveTaint(ctx, api.client, d.node, key, func(err error) {
		switch {
		case err == nil:
			d.log.Info("removed the start-up taint from the Node", "node", d.node, "taint", key)
			last = ""
		case err.Error() != last:
			last = err.Error()
			d.log.Warn("cannot remove the start-up taint from the Node, trying again: pods are not scheduled to it until then", "node", d.node, "taint", key, "err", err)
		}
	})
}
