package migration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
)

// leaseName is the Lease of the run that may change nodes.
const leaseName = "nftproxy-migrate"

// A run that has been killed holds the Lease for leaseTime.
const (
	leaseTime    = 15 * time.Second
	leaseRenewal = 10 * time.Second
	leaseRetry   = 2 * time.Second
)

// alone runs a function while no other run does. Where another one has the Lease and does not renew it, as a killed
// one, alone waits until it has expired. It does not wait for one that works: what that one does may make this one
// wrong.
func (m *migration) alone(ctx context.Context, run func(context.Context) error) error {
	electing, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(nil)
	began, ended := make(chan struct{}), make(chan error, 1)
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("name this run: %w", err)
	}
	self := fmt.Sprintf("%s/%d/%s", host, os.Getpid(), rand.String(5))
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{LeaseMeta: metav1.ObjectMeta{Namespace: m.of.Namespace, Name: leaseName},
			Client: m.of.Client.CoordinationV1(), LockConfig: resourcelock.ResourceLockConfig{Identity: self}},
		LeaseDuration: leaseTime, RenewDeadline: leaseRenewal, RetryPeriod: leaseRetry, ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) {
				close(began)
				leading, cancel := context.WithCancelCause(leading)
				// The Lease is kept until run has returned, so the end of ctx ends run only.
				stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
				defer stop()
				err := run(leading)
				if err != nil && leading.Err() != nil && ctx.Err() == nil {
					err = errors.New("the API server did not renew the Lease " + leaseName + " of this run")
				}
				ended <- err
				end(nil)
			},
			OnStoppedLeading: func() {},
			OnNewLeader: func(holder string) {
				if holder != self && holder != "" {
					m.say("Lease "+leaseName, holder, "has it; waiting, in case it was killed")
				}
			},
		},
	})
	if err != nil {
		return fmt.Errorf("take the Lease %s: %w", leaseName, err)
	}
	waited := time.AfterFunc(leaseTime+3*leaseRetry, func() {
		select {
		case <-began:
		default:
			end(&ObstacleError{[]string{fmt.Sprintf("another migration runs: %s (Lease %s in %s)", elector.GetLeader(),
				leaseName, m.of.Namespace)}})
		}
	})
	defer waited.Stop()
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-began:
		default:
			end(context.Cause(ctx))
		}
	})
	defer stop()
	elector.Run(klog.NewContext(electing, klog.Logger{})) // It logs what the lines say.
	m.removeLease(ctx)
	select {
	case <-began:
		return <-ended
	default:
		return context.Cause(electing)
	}
}

// removeLease removes the Lease that nobody has. An error leaves an object that does no harm.
func (m *migration) removeLease(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	leases := m.of.Client.CoordinationV1().Leases(m.of.Namespace)
	l, err := leases.Get(ctx, leaseName, metav1.GetOptions{})
	if err == nil && ptr.Deref(l.Spec.HolderIdentity, "") == "" {
		_ = leases.Delete(ctx, leaseName, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &l.UID, ResourceVersion: &l.ResourceVersion}})
	}
}
